"""Ports that are held until, or while, a worker serves on them.

Local TensorFlow worker processes: real devices with a real link.

Each worker is a process that serves TensorFlow's gRPC runtime on loopback and
computes on one thread, on a core of its own where there are enough. (The
executor has a second thread: with one, a tensor is sent only when the ops that
follow its producer on the same worker are done.) Task 0 also holds the
sessions, so N workers are exactly N processes."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tfplace.core.cluster import Cluster, Device
from tfplace.errors import MeasurementError
from tfplace.measure.calibrate import links
from tfplace.measure.local import gpus, processes, runtime
from tfplace.measure.session import messages

HOST = "127.0.0.1"


@contextmanager
def reserved(count: int) -> Iterator[list[int]]:
  """Distinct free ports that no other process is given meanwhile.

  Each is bound, not listened on, with SO_REUSEPORT: a worker of the same user
  that asks for the port by number, and for reuse, gets it without a race.
  """
  with ExitStack() as stack:
    ports = []
    for _ in range(count):
      holder = stack.enter_context(socket.socket())
      holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      holder.bind((HOST, 0))
      ports.append(holder.getsockname()[1])
    yield ports


@contextmanager
def held(host: str, port: int) -> Iterator[int]:
  """Holds one port of an address, which nobody may be serving on; 0: any.

  Raises:
    MeasurementError: the address is not this host's, or the port is taken.
  """
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  with socket.socket(family) as probe, socket.socket(family) as holder:
    try:
      # Without SO_REUSEPORT a port that anybody listens on is refused.
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind((host, port))
      found = int(probe.getsockname()[1])
      probe.close()
      holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      holder.bind((host, found))
    except OSError as error:
      why = error.strerror or str(error)
      if error.errno == errno.EADDRNOTAVAIL:
        why = "this host has no such address"
      raise MeasurementError(
        f"nothing can be served on {host} port {port}: {why}"
      ) from error
    yield found


_START_ATTEMPTS = 3
_EXECUTOR_THREADS = 2  # one op at a time, by `runs_in_order`, and its sends


class WorkerCluster(runtime.Runtime):
  """`count` worker processes, started on entry and gone on exit.

  Args:
    count: number of workers.
    memory_limit_bytes: memory of each device. The kernel (RLIMIT_DATA) ends a
      worker that takes 256 MiB (threads of the runtime) more than that on top
      of its empty runtime. None: not limited, and the cluster says the host's
      memory / count.
    startup_timeout_s: for one worker to come up.
    onednn: use oneDNN's kernels. Faster, but it fuses ops on the way, so that
      ops of the profile are missing or merged.

  Raises:
    MeasurementError: `count` is below 1.
  """

  runs_in_order = True

  def __init__(
    self,
    count: int,
    memory_limit_bytes: float | None = None,
    startup_timeout_s: float = runtime.STARTUP_TIMEOUT_S,
    onednn: bool = False,
  ) -> None:
    super().__init__(startup_timeout_s)
    if count < 1:
      raise MeasurementError(f"{count} workers were asked for; at least 1")
    self.count = count
    self.memory_limit_bytes = memory_limit_bytes
    self._onednn = onednn

  def __enter__(self) -> "WorkerCluster":
    super().__enter__()
    return self

  @property
  def device_names(self) -> tuple[str, ...]:
    return tuple(
      f"/job:worker/replica:0/task:{task}/device:CPU:0"
      for task in range(self.count)
    )

  @property
  def loopback_only(self) -> bool:
    """Every server refuses connections from other hosts."""
    return all(ready.loopback_only for ready in self._ready)

  def _spawn(self) -> None:
    for attempt in range(_START_ATTEMPTS):
      try:
        with reserved(self.count) as free:
          self._spawn_on(free)
        return
      except processes.ChildError as error:
        self.stop()
        last = attempt == _START_ATTEMPTS - 1
        if error.kind != "address_in_use" or last:
          raise

  def _spawn_on(self, free: list[int]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    addresses = [f"{HOST}:{port}" for port in free]
    for task in range(self.count):
      config = messages.ChildConfig(
        addresses=addresses,
        task=task,
        threads=_EXECUTOR_THREADS,
        core=cores[task] if self.count <= len(cores) else None,
        onednn=self._onednn,
        memory_limit_bytes=self.memory_limit_bytes,
      )
      self._children.append(processes.Child(f"worker {task}", config))
    self._await_ready(self._children)

  def cluster(self) -> Cluster:
    return workers_cluster(self)


def workers_cluster(workers: WorkerCluster) -> Cluster:
  """The workers as devices of kind "CPU", their links measured.

  Raises:
    MeasurementError: the transfers could not be timed.
  """
  memory = workers.memory_limit_bytes or gpus.memory_bytes() / workers.count
  return Cluster(
    name=f"workers:{workers.count}",
    devices=tuple(
      Device(
        name, "CPU", memory_bytes=memory, extra={"product": gpus.cpu_name()}
      )
      for name in workers.device_names
    ),
    links=links.loopback_links(workers, workers.device_names),
  )

"""Local TensorFlow worker processes: real devices with a real link.

Each worker is a process that serves TensorFlow's gRPC runtime on loopback and
computes on one thread, on a core of its own where there are enough. (The
executor has a second thread: with one, a tensor is sent only when the ops that
follow its producer on the same worker are done.) Task 0 also holds the
sessions, so N workers are exactly N processes.
"""

import os

from tfplace.core.cluster import Cluster, Device
from tfplace.errors import MeasurementError
from tfplace.measure.calibrate import links
from tfplace.measure.local import host, processes, runtime
from tfplace.measure.session import messages

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
        with host.reserved(self.count) as free:
          self._spawn_on(free)
        return
      except processes.ChildError as error:
        self.stop()
        last = attempt == _START_ATTEMPTS - 1
        if error.kind != "address_in_use" or last:
          raise

  def _spawn_on(self, free: list[int]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    addresses = [f"{host.LOOPBACK}:{port}" for port in free]
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
  memory = workers.memory_limit_bytes or host.memory_bytes() / workers.count
  return Cluster(
    name=f"workers:{workers.count}",
    devices=tuple(
      Device(
        name, "CPU", memory_bytes=memory, extra={"product": host.cpu_name()}
      )
      for name in workers.device_names
    ),
    links=links.loopback_links(workers, workers.device_names),
  )

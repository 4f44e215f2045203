"""Child processes that run steps, with deadlines and guaranteed cleanup.

`Runtime` is the base of `WorkerCluster`, `LocalDevices` and `HostCluster`,
which the harness uses alike. A child can die, hang inside TensorFlow or be
killed, so the parent never waits for it without a deadline.
"""

import abc
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import connection
from types import TracebackType
from typing import IO, Any, Self

from tfplace.errors import MeasurementError
from tfplace.formats.files import check_temporary_folder
from tfplace.graph.cluster import Cluster
from tfplace.graph.progress import Progress, silent
from tfplace.measure.session import messages

STARTUP_TIMEOUT_S = 90.0
_LOG_NOISE = re.compile(r"[IW]\d{4} |WARNING: All log|.*failed call to cuInit")
# glibc returns freed buffers of tens of megabytes to the kernel, which zeroes
# their pages on the next use. In some steps, that doubles the time of a
# convolution. Devices with their own memory pools keep freed memory, so CPUs in
# their place do, too.
_KEEP_MEMORY = {
  "MALLOC_ARENA_MAX": "1",
  "MALLOC_MMAP_MAX_": "0",
  "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
_START_ATTEMPTS = 3
_TIMES_TIMEOUT_S = 60.0
_REAP_S = 10.0
_DEATH_GRACE_S = 2.0  # a worker's death shows shortly after its peers fail
_FAILURES = {
  "failed": "failed",
  "lost": "lost a worker",
  "out_of_memory": "out of memory",
  "address_in_use": "the port is in use",
}


class ChildError(MeasurementError):
  """Failure of a measuring process.

  Attributes:
    kind: "died", "hung", "out_of_memory", "address_in_use", "failed", "lost",
      "not_started" or "not_measured".
  """

  def __init__(self, kind: str, message: str, **about: Any) -> None:
    super().__init__(message, **about)
    self.kind = kind


class Child:
  """One measuring process, called `name` in errors, and the socket to it."""

  def __init__(self, name: str, config: messages.ChildConfig) -> None:
    self.name = name
    self.stage = "starting"
    check_temporary_folder()
    self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`kill` closes it)
    ours, theirs = socket.socketpair()
    number = str(theirs.fileno())
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, "-m", "tfplace.measure.session.worker", number],
        stdin=subprocess.PIPE,  # the child ends when it closes: see worker.py
        stdout=self._log,
        stderr=self._log,
        pass_fds=[theirs.fileno()],
        env=_environment(config),
      )
    self.connection: connection.Connection = connection.Connection(
      ours.detach()
    )
    with contextlib.suppress(OSError):  # `receive` reports a dead child
      self.connection.send(config)

  @property
  def pid(self) -> int:
    return self._process.pid

  def kill(self) -> None:
    """Kills the process and its group, even if stopped, and reaps it."""
    with contextlib.suppress(OSError):  # it may not have its group yet
      os.killpg(self.pid, signal.SIGKILL)
    self._process.kill()
    # A process in an uninterruptible system call is reaped later.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(_REAP_S)
    if self._process.stdin:
      self._process.stdin.close()
    self.connection.close()
    self._log.close()

  def death(self) -> str | None:
    """Describes the death of the process; None if it is alive."""
    code = self._process.poll()
    if code is None:
      return None
    if code < 0:
      how = f"was killed by {signal.Signals(-code).name}"
    else:
      how = f"exited with code {code}"
    tail = self.log_tail()
    return how + (f"; its log ends: {tail}" if tail else "")

  def log_tail(self, max_chars: int = 300) -> str:
    """Returns the end of its output without TensorFlow's routine messages."""
    end = self._log.seek(0, os.SEEK_END)
    self._log.seek(max(0, end - 64 * max_chars))
    lines = self._log.read().decode("utf-8", "replace").splitlines()
    kept = [line for line in lines if not _LOG_NOISE.match(line)]
    return " ".join(" ".join(kept).split())[-max_chars:]

  def receive(
    self,
    timeout_s: float,
    doing: str,
    others: Sequence["Child"] = (),
    on_stage: Progress = silent,
  ) -> Any:
    """Waits for the next answer while this process and the others live.

    Args:
      timeout_s: timeout of the answer.
      doing: starts the message of an error.
      others: further processes of the measurement.
      on_stage: called with each stage that this process reports.

    Raises:
      ChildError: a process died, this one reported a failure, or the timeout
        elapsed.
    """
    deadline = time.monotonic() + timeout_s
    watched = {c.connection: c for c in (self, *others)}
    while True:
      left = deadline - time.monotonic()
      ready = connection.wait(list(watched), max(0.0, left))
      if not ready:
        text = f"no answer within {timeout_s:g} s, in {self.stage}"
        raise ChildError("hung", f"{doing}: {text}")
      for other in others:
        if other.connection in ready:  # They only send as they start.
          raise _died([other, self, *others], doing)
      try:
        answer = self.connection.recv()
      except (EOFError, OSError):
        raise _died([self, *others], doing) from None
      if isinstance(answer, messages.Stage):
        self.stage = answer.name
        on_stage(answer.name)
      elif isinstance(answer, messages.Failure):
        raise self._failure(answer, doing, others)
      else:
        return answer

  def _failure(
    self, failure: messages.Failure, doing: str, others: Sequence["Child"]
  ) -> ChildError:
    """Returns the failure, or the death of another process that caused it."""
    if failure.kind in ("failed", "lost"):
      for other in others:
        if other.connection.poll(0.2):
          return _died([other, self, *others], doing)
    text = f"{_FAILURES[failure.kind]} in {self.stage}: {failure.message}"
    return ChildError(failure.kind, f"{doing}: {text}")


def _environment(config: messages.ChildConfig) -> dict[str, str]:
  """Returns the child's environment, with its threads and this package.

  A process with GPUs keeps the user's settings, such as TF_XLA_FLAGS and those
  of malloc.

  oneDNN keeps its default, on for x86. Its layout pass runs on each device's
  part of the placed graph, so ops that it fuses (Conv2D with BiasAdd) stay on
  their device, and convolutions take less than half the time.
  """
  package = str(pathlib.Path(__file__).parents[3])
  path = os.environ.get("PYTHONPATH")
  result = {
    **os.environ,
    "PYTHONPATH": package + (os.pathsep + path if path else ""),
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_GRPC_REUSE_PORT": "true",  # the parent holds the port: see host.py
    "PYTHONUNBUFFERED": "1",
  }
  if config.gpus:
    # Rule 2 of the simulator: every GPU is fed by threads of its own. The
    # default is a pool that all GPUs share.
    result.setdefault("TF_GPU_THREAD_MODE", "gpu_private")
  else:
    result |= {**_KEEP_MEMORY, "CUDA_VISIBLE_DEVICES": "-1"}
  if config.op_threads:
    threads = str(config.op_threads)
    result |= {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
  return result


def _died(children: Sequence[Child], doing: str) -> ChildError:
  """Returns the death of one of the children, the first of which is gone."""
  deadline = time.monotonic() + _DEATH_GRACE_S
  while time.monotonic() < deadline:
    for child in children:
      how = child.death()
      if how is not None:
        kind = "out_of_memory" if "bad_alloc" in how else "died"
        return ChildError(kind, f"{doing}: {child.name} {how}")
    time.sleep(0.01)
  return ChildError(
    "died", f"{doing}: {children[0].name} closed its connection"
  )


class Runtime(abc.ABC):
  """Processes that run steps; a context manager that ends them all.

  After a death, a hang, an interrupt or lack of memory, all processes are
  killed, and the next `run` starts new ones. A failed measurement therefore
  does not affect the next.

  Attributes:
    runs_in_order: whether each device runs one op at a time, in the simulated
      order.
    on_stage: called with each stage of `time_each`.
  """

  runs_in_order = False

  def __init__(self) -> None:
    self.on_stage: Progress = silent
    self._children: list[Child] = []
    self._closed = False
    self._ready: list[messages.Ready] = []

  def __enter__(self) -> Self:
    self.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self._closed = True
    self.stop()

  @property
  def pids(self) -> tuple[int, ...]:
    """Lists the process ids of the children."""
    return tuple(child.pid for child in self._children)

  @property
  def stage(self) -> str:
    """Names the current stage, such as "the timed steps", or ""."""
    return self._children[0].stage if self._children else ""

  @property
  @abc.abstractmethod
  def device_names(self) -> tuple[str, ...]:
    """Lists the full names of the devices."""

  @abc.abstractmethod
  def cluster(self) -> Cluster:
    """Returns devices and measured links, or raises MeasurementError."""

  def starting_us(self, device: str) -> float:
    """Returns the time to start a step in the device's process."""
    del device  # local processes: included in the op overhead
    return 0.0

  @abc.abstractmethod
  def _spawn(self) -> None:
    """Appends new children to `_children`."""

  def start(self) -> None:
    """Starts the processes if needed.

    Raises:
      ChildError: they do not start, also when tried again.
      MeasurementError: they have been closed, or see the subclass.
    """
    if self._closed:
      raise MeasurementError("the measuring processes have been closed")
    if self._children:
      return
    for left in reversed(range(_START_ATTEMPTS)):
      try:
        return self._spawn()
      except BaseException as error:
        self.stop()
        is_final = not isinstance(error, ChildError) or error.kind == "hung"
        if is_final or not left:
          raise

  def _await_ready(self) -> None:
    self._ready = [
      child.receive(STARTUP_TIMEOUT_S, f"starting {child.name}")
      for child in self._children
    ]

  def stop(self) -> None:
    """Ends every process."""
    children, self._children = self._children, []
    for child in children:
      child.kill()

  def run(
    self,
    request: messages.StepRequest,
    timeout_s: float,
    on_stage: Progress = silent,
  ) -> messages.StepReply:
    """Runs the steps of `request`; on failure, ends every process.

    Args:
      request: the steps.
      timeout_s: seconds after which they count as hung.
      on_stage: called with each stage, such as "the timed steps".

    Raises:
      ChildError: a process died, exceeded `timeout_s`, ran out of memory or
        could not run the graph.
    """
    return self._answer(request, timeout_s, on_stage)

  def time_each(self, request: messages.TimesRequest) -> list[float]:
    """Times each target of `request` within a minute; fails as `run`."""
    return self._answer(request, _TIMES_TIMEOUT_S, self.on_stage)

  def _answer(self, request: Any, timeout_s: float, on_stage: Progress) -> Any:
    self.start()
    driver, *others = self._children
    try:
      driver.stage = "sending the graph"
      with contextlib.suppress(OSError):  # `receive` reports who died
        driver.connection.send(request)
      return driver.receive(timeout_s, "measuring", others, on_stage)
    except BaseException as error:  # also interrupts: they are mid-step
      if not (isinstance(error, ChildError) and error.kind == "failed"):
        self.stop()
      raise

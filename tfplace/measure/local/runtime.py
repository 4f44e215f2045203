"""The base of what runs steps: a set of measuring processes.

`WorkerCluster`, `LocalDevices` and `HostCluster` fill it in; the harness does
not know which one it has.
"""

import abc
import contextlib
from collections.abc import Sequence
from types import TracebackType

from tfplace.core.cluster import Cluster
from tfplace.errors import MeasurementError
from tfplace.measure.local import processes
from tfplace.measure.session import messages

STARTUP_TIMEOUT_S = 90.0


class Runtime(abc.ABC):
  """Processes that run steps. A context manager: leaving it ends them all.

  After a death, a hang, an interrupt or a lack of memory every process is
  killed, and the next `run` starts new ones, so that one bad measurement does
  not spoil another.
  """

  # Whether each device runs its ops one at a time, in the simulated order.
  runs_in_order = False

  def __init__(self, startup_timeout_s: float = STARTUP_TIMEOUT_S) -> None:
    self._startup_timeout_s = startup_timeout_s
    self._children: list[processes.Child] = []
    self._closed = False
    self._ready: list[messages.Ready] = []

  def __enter__(self) -> "Runtime":
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
    """Process ids of the children that were started."""
    return tuple(child.pid for child in self._children)

  @property
  def stage(self) -> str:
    """Where the measurement is, such as "the timed steps"; "" if none is."""
    return self._children[0].stage if self._children else ""

  @property
  @abc.abstractmethod
  def device_names(self) -> tuple[str, ...]:
    """Full names of the devices, in order."""

  @abc.abstractmethod
  def cluster(self) -> Cluster:
    """The devices and the measured links between them."""

  def starting_us(self, device: str) -> float:
    """Time of every step on the device to request it from its process."""
    del device  # local processes: part of the op overhead
    return 0.0

  @abc.abstractmethod
  def _spawn(self) -> None:
    """Appends new children to `_children`."""

  def start(self) -> None:
    """Starts the processes unless they run.

    Raises:
      ChildError: one did not come up in time.
    """
    if self._closed:
      raise MeasurementError("the measuring processes have been closed")
    if self._children:
      return
    try:
      self._spawn()
    except BaseException:
      self.stop()
      raise

  def _await_ready(self, children: Sequence[processes.Child]) -> None:
    self._ready = [
      processes.receive(
        child, [child], self._startup_timeout_s, f"starting {child.name}"
      )
      for child in children
    ]

  def stop(self) -> None:
    """Ends every process."""
    children, self._children = self._children, []
    for child in children:
      child.kill()

  def run(
    self, request: messages.StepRequest, timeout_s: float
  ) -> messages.StepReply:
    """Runs the steps of `request`; ends every process when that fails.

    Raises:
      ChildError: a process died, hung past `timeout_s`, ran out of memory or
        could not run the graph.
    """
    self.start()
    doing = "measuring"
    try:
      driver = self._children[0]
      driver.stage = "sending the graph"
      with contextlib.suppress(OSError):  # then `receive` says who died
        driver.connection.send(request)
      return processes.receive(driver, self._children, timeout_s, doing)
    except BaseException as error:  # an interrupt too: they are mid-step
      alive = isinstance(error, processes.ChildError) and error.kind == "failed"
      if not alive:
        self.stop()
      raise

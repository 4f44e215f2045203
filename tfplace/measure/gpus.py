"""This host's own devices: its GPUs, logical GPUs of one, or logical CPUs.

Each measurement has a process of its own, since a GPU's allocator gives
nothing back and is set up once per process.
"""

import contextlib
from collections.abc import Iterator

from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Cluster, Device
from tfplace.measure import host, links, messages, processes, runtime

_PREFIX = "/job:localhost/replica:0/task:0/device:"


class LocalDevices(runtime.Runtime):
  """The devices of one fresh process per measurement.

  Args:
    logical_gpus: split the first GPU into so many; None: every GPU, whole.
    memory_bytes: of each logical GPU.
    logical_cpus: so many logical CPU devices, and no GPU at all; they share
      the host's cores and memory, and stand in for GPUs where there is none.
    startup_timeout_s: for the process to come up.
  """

  def __init__(
    self,
    logical_gpus: int | None = None,
    memory_bytes: float | None = None,
    logical_cpus: int | None = None,
    startup_timeout_s: float = runtime.STARTUP_TIMEOUT_S,
  ) -> None:
    super().__init__(startup_timeout_s)
    if logical_gpus is not None and memory_bytes is None:
      raise MeasurementError("logical GPUs need memory_bytes, for each")
    self._keep = False
    self._use_gpus = logical_cpus is None
    self._config = messages.ChildConfig(
      threads=max(2, logical_cpus or logical_gpus or 8),
      cpu_devices=logical_cpus or 1,
      gpus=self._use_gpus,
      gpu_memory_mb=[(memory_bytes or 0) / 2**20] * (logical_gpus or 0),
    )

  @property
  def device_names(self) -> tuple[str, ...]:
    """GPUs first, for they are where ops should go."""
    return tuple(sorted(self._devices, key=_gpus_first))

  @property
  def _devices(self) -> dict[str, float]:
    """Name -> memory of the devices; empty before the first start."""
    found: dict[str, float] = {}
    for ready in self._ready:
      found.update(ready.devices)
    return found

  def _spawn(self) -> None:
    self._children.append(processes.Child("process", self._config))
    self._await_ready(self._children)
    has_gpu = any(":GPU:" in name for name in self.device_names)
    if self._use_gpus and not has_gpu:
      raise MeasurementError(
        "this host has no GPU that TensorFlow can use; choose --cluster="
        "workers:N for local worker processes"
      )

  def run(
    self, request: messages.StepRequest, timeout_s: float
  ) -> messages.StepReply:
    try:
      return super().run(request, timeout_s)
    finally:
      if not self._keep:
        self.stop()

  @contextlib.contextmanager
  def one_process(self) -> Iterator[None]:
    """Runs within share one process: for small graphs, such as transfers."""
    self._keep = True
    try:
      yield
    finally:
      self._keep = False
      self.stop()

  def device_memory_bytes(self, name: str) -> float:
    """Memory of a device; logical CPUs share the host's evenly."""
    if _kind(name) == "GPU":
      return self._devices[name]
    return host.memory_bytes() / self._config.cpu_devices

  def cluster(self) -> Cluster:
    return gpus_cluster(self)


def gpus_cluster(local: LocalDevices) -> Cluster:
  """The devices of this host, their links measured.

  Raises:
    MeasurementError: no GPU, or the transfers could not be timed.
  """
  with local.one_process():
    local.start()
    names = local.device_names
    found = links.measure_links(local, names)
  return Cluster(
    name="gpus",
    devices=tuple(
      Device(n, _kind(n), memory_bytes=local.device_memory_bytes(n))
      for n in names
    ),
    links=found,
  )


def _kind(name: str) -> str:
  return name.removeprefix(_PREFIX).partition(":")[0]


def _gpus_first(name: str) -> tuple[bool, int]:
  return _kind(name) != "GPU", int(name.rpartition(":")[2])

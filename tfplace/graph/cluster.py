"""Devices and the links between them."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.errors import FormatError, shown
from tfplace.graph.argument_checks import (
  MAX_SUMMAND,
  Unlimited,
  check_name,
  check_summand,
)
from tfplace.graph.quantities import num_bytes

CPU = "CPU"  # Kind of CPUs; `CPU-<name>` where there are several.
NO_CHANNEL = -1  # Entry of `Cluster.channel` for a missing link.
# Fields of `Link` with the communication overhead on the endpoint devices.
MESSAGE_COSTS = ("send_us", "send_us_per_byte", "recv_us", "recv_us_per_byte")


@dataclasses.dataclass(frozen=True)
class Device:
  """A device of a cluster.

  Attributes:
    name: full TensorFlow device name.
    kind: device kind, such as "GPU" or "CPU". The device runs ops that have a
      time for this kind.
    memory_bytes: capacity; infinite if unlimited.
    op_overhead_us: idle time after each op of nonzero time.
    extra: unknown keys of the file.
  """

  name: str
  kind: str
  memory_bytes: Unlimited = math.inf
  op_overhead_us: float = 0.0
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def is_cpu(self) -> bool:
    """True if the device is a CPU of any kind."""
    return self.base_kind == CPU

  @property
  def base_kind(self) -> str:
    """Kind without the name after the first hyphen: "GPU" of "GPU-v100"."""
    return self.kind.partition("-")[0]


@dataclasses.dataclass(frozen=True)
class Link:
  """A directed link between two devices.

  Attributes:
    src: name of the sending device.
    dst: name of the receiving device.
    bandwidth_bytes_per_us: bandwidth, above 0.
    latency_us: added to each transfer; does not occupy the channel.
    gap_us: time that the channel stays busy after each transfer.
    channel: name of the channel; links with the same name share it, and None
      means a channel of its own.
    send_us: time on the sending device per transfer.
    send_us_per_byte: further time on the sending device per byte.
    recv_us: time on the receiving device per transfer.
    recv_us_per_byte: further time on the receiving device per byte.
    extra: unknown keys of the file.
  """

  src: str
  dst: str
  bandwidth_bytes_per_us: float
  latency_us: float = 0.0
  gap_us: float = 0.0
  channel: str | None = None
  send_us: float = 0.0
  send_us_per_byte: float = 0.0
  recv_us: float = 0.0
  recv_us_per_byte: float = 0.0
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _link_matrix(
  field: str, default: float = 0.0
) -> functools.cached_property[np.ndarray]:
  """Returns a property of `Cluster`: a field of its links as a matrix."""

  def matrix(cluster: "Cluster") -> np.ndarray:
    result = np.full((cluster.num_devices, cluster.num_devices), default)
    for link in cluster.links:
      at = cluster.index[link.src], cluster.index[link.dst]
      result[at] = getattr(link, field)
    return result

  return functools.cached_property(matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class Cluster:
  """A set of numbered devices and the links between them.

  Attributes:
    name: name of the cluster.
    devices: [num_devices] devices with unique names.
    links: at most one link per ordered pair of devices.
    extra: unknown keys of the file.

  Raises:
    FormatError: there is no device, a name is empty or occurs twice, a link has
      an unknown end, or a number is negative, not finite or too large.
  """

  name: str
  devices: tuple[Device, ...]
  links: tuple[Link, ...] = ()
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    if not self.devices:
      raise FormatError(f"cluster {self.name!r} has no devices")
    if len(self.index) < len(self.devices):
      names = [d.name for d in self.devices]
      twice = next(n for n in names if names.count(n) > 1)
      raise FormatError(
        f"cluster {self.name!r}: duplicate device name {twice!r}", device=twice
      )
    for device in self.devices:
      where = f"cluster {self.name!r}: device {shown(device.name)}"
      check_name(device.name, where)
      check_name(device.kind, f"{where}: kind")
      if not device.memory_bytes >= 0:
        raise FormatError(f"{where}: memory_bytes: {device.memory_bytes}")
      check_summand(device.op_overhead_us, f"{where}: op_overhead_us")
    self._check_links()

  def _check_links(self) -> None:
    seen: set[tuple[str, str]] = set()
    for link in self.links:
      ends = f"{shown(link.src)} -> {shown(link.dst)}"
      where = f"cluster {self.name!r}: link {ends}"
      rate = link.bandwidth_bytes_per_us
      if not rate >= 1 / MAX_SUMMAND:
        raise FormatError(
          f"{where}: bandwidth_bytes_per_us is {rate:g}, less than"
          f" {1 / MAX_SUMMAND:g}"
        )
      for field in ("latency_us", "gap_us", *MESSAGE_COSTS):
        check_summand(getattr(link, field), f"{where}: {field}")
      for end in (link.src, link.dst):
        if end not in self.index:
          raise FormatError(f"{where} names unknown device {end!r}", device=end)
      if (link.src, link.dst) in seen:
        raise FormatError(
          f"cluster {self.name!r}: duplicate link {link.src!r} -> {link.dst!r}"
        )
      seen.add((link.src, link.dst))

  @property
  def num_devices(self) -> int:
    return len(self.devices)

  @functools.cached_property
  def index(self) -> Mapping[str, int]:
    """Device name -> index."""
    return {device.name: i for i, device in enumerate(self.devices)}

  @functools.cached_property
  def hosts(self) -> np.ndarray:
    """[num_devices] int64 number of each device's host, the task in its name.

    Devices without a task in their names are on one host.
    """
    tasks = [device.name.rpartition("/device:")[0] for device in self.devices]
    numbers = {task: i for i, task in enumerate(dict.fromkeys(tasks))}
    return np.array([numbers[task] for task in tasks])

  @functools.cached_property
  def is_cpu(self) -> np.ndarray:
    """[num_devices] bool; True for CPUs of any kind."""
    return np.array([device.is_cpu for device in self.devices])

  @functools.cached_property
  def kind_labels(self) -> tuple[str, ...]:
    """[num_devices] names of kinds for people: "v100" of `GPU-v100`.

    "" where all devices of a type, such as GPUs, are of one kind.
    """
    pairs = {(device.base_kind, device.kind) for device in self.devices}
    bases = [base for base, _ in pairs]
    return tuple(
      device.kind.removeprefix(device.base_kind).removeprefix("-")
      if bases.count(device.base_kind) > 1
      else ""
      for device in self.devices
    )

  @functools.cached_property
  def memory_bytes(self) -> np.ndarray:
    """Memory capacity of each device, [num_devices] float64."""
    return np.array([d.memory_bytes for d in self.devices], np.float64)

  @functools.cached_property
  def op_overhead_us(self) -> np.ndarray:
    """Overhead after each op, [num_devices] float64."""
    return np.array([d.op_overhead_us for d in self.devices], np.float64)

  # Fields of `Link`, [num_devices, num_devices] float64; NaN or 0 without one.
  bandwidth = _link_matrix("bandwidth_bytes_per_us", math.nan)
  latency_us = _link_matrix("latency_us")
  gap_us = _link_matrix("gap_us")
  send_us = _link_matrix("send_us")
  send_us_per_byte = _link_matrix("send_us_per_byte")
  recv_us = _link_matrix("recv_us")
  recv_us_per_byte = _link_matrix("recv_us_per_byte")

  @property
  def has_message_costs(self) -> bool:
    """True if any link has communication overhead on its endpoint devices."""
    return any(getattr(self, name).any() for name in MESSAGE_COSTS)

  @functools.cached_property
  def channel(self) -> np.ndarray:
    """[num_devices, num_devices] int32 channel number; -1 without a link."""
    result = np.full((self.num_devices, self.num_devices), NO_CHANNEL, np.int32)
    numbers: dict[object, int] = {}
    for link in self.links:
      # Named and unnamed channels cannot collide because their key types
      # differ.
      key = (link.src, link.dst) if link.channel is None else link.channel
      number = numbers.setdefault(key, len(numbers))
      result[self.index[link.src], self.index[link.dst]] = number
    return result

  @functools.cached_property
  def is_fully_linked(self) -> bool:
    """True if every device has a link to every other device."""
    is_self = np.eye(self.num_devices, dtype=bool)
    return bool(((self.channel >= 0) | is_self).all())

  @property
  def num_channels(self) -> int:
    return int(self.channel.max()) + 1


def with_max_memory(
  cluster: Cluster, limits: Mapping[str, str | float]
) -> Cluster:
  """Returns a copy of the cluster with other memory sizes.

  Args:
    cluster: devices that `limits` does not name keep their size.
    limits: device -> bytes, or a size with a unit: "10GiB" is 10 * 2**30 bytes,
      "10GB" is 10**10. A device of size 0 holds nothing. A device is named in
      full, or by a suffix that only it has, such as "GPU:0".

  Raises:
    FormatError: a device is unknown, ambiguous or named twice, or a size is
      invalid; names it.
  """
  memory: dict[str, float] = {}
  for name, size in limits.items():
    device = find_device(cluster, name)
    if device in memory:
      raise FormatError(
        f"device {device!r} is given two memory sizes, one of them by the name"
        f" {shown(name)}; give it one",
        device=device,
      )
    try:
      memory[device] = num_bytes(size)
    except FormatError as error:
      raise FormatError(
        f"memory limit of {shown(name)}: {error}", device=device
      ) from error
  devices = tuple(
    dataclasses.replace(d, memory_bytes=memory.get(d.name, d.memory_bytes))
    for d in cluster.devices
  )
  return dataclasses.replace(cluster, devices=devices)


def find_device(cluster: Cluster, name: str) -> str:
  """Resolves a device name or unique suffix; raises FormatError otherwise."""
  names = [device.name for device in cluster.devices]
  if name in names:
    return name
  end = name if str(name).startswith("/") else f"/device:{name}"
  matches = [full for full in names if full.endswith(end)]
  if len(matches) != 1:
    raise FormatError(
      f"{shown(name)} names {len(matches) or 'no'}"
      f" device{'s' * (len(matches) != 1)} of cluster {cluster.name!r}; it has"
      f" {', '.join(names)}",
      device=str(name),
    )
  return matches[0]

"""Variants of a training step: microbatches and activations, by op names."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tfplace.errors import ExtractionError, shown
from tfplace.graph.argument_checks import AUTO, whole_number
from tfplace.graph.cluster import Cluster
from tfplace.graph.recompute import (
  NO_RECOMPUTATION,
  RecomputeConfig,
  recompute_of,
)

SCOPE = "microbatch_"
BATCH_SCOPE = "part_of_batch"  # Inside SCOPE: the ops that slice the batch.
BEGIN = "begin"  # Inside BATCH_SCOPE: waits for an earlier microbatch.
SIZE_SCOPE = "examples_"  # Inside BATCH_SCOPE: the size, where sizes are given.
SUM_SCOPE = "accumulate"  # The ops that add gradients.
TEMPLATE = "microbatch_step"  # The traced graph that is copied.
RELAY_SCOPE = "relay_to_host_"  # The ops that pass on variables to hosts.
_COUNT = r"[1-9]\d{0,3}"
_SUMMED = re.compile(rf"{SUM_SCOPE}_on_({_COUNT}(?:_and_{_COUNT}){{0,63}})/")
_RELAYED = re.compile(rf"{RELAY_SCOPE}\d+/")
_SIZED = re.compile(rf"{BATCH_SCOPE}/{SIZE_SCOPE}([1-9]\d{{0,11}})/")
_SCOPED = re.compile(rf"{SCOPE}(\d+)/(.*)", re.DOTALL)


def is_auto(microbatches: Any) -> bool:
  """Returns whether the number is chosen together with the placement."""
  return isinstance(microbatches, str) and microbatches == AUTO


def microbatch_of(op: str) -> int | None:
  """Returns the microbatch of an op, or None if all microbatches share it."""
  scoped = _SCOPED.match(op)
  return int(scoped[1]) if scoped else None


def name_in_whole(op: str) -> str:
  """Returns the name of an op without its microbatch scope."""
  scoped = _SCOPED.match(op)
  return scoped[2] if scoped else op


def name_of_relayed(op: str) -> str:
  """Returns the name of the read that a relay passes on, or the name itself."""
  return _RELAYED.sub("", op, count=1) if op.startswith(RELAY_SCOPE) else op


@dataclasses.dataclass(frozen=True)
class VariantConfig:
  """Division of a training step into microbatches, and their activations.

  Attributes:
    count: number k of microbatches; without `sizes`, n examples are divided
      into microbatches of n // k or n // k + 1 examples.
    max_in_flight: m: the forward pass of microbatch i + m waits for the
      backward pass of microbatch i; None means k.
    allow_batch_statistics: lets statistics over the batch (BatchNormalization)
      be computed for each microbatch, as replicated training does.
    recompute: activations that the backward pass computes again.
    sizes: [k] examples of each microbatch, which add up to the batch; None
      divides it equally. A batch of another size is divided in proportion.
    devices: [num_hosts] devices of each host that sums of gradients are made
      for; () stands for one device.

  Raises:
    ExtractionError: a number is below 1, or a value has a wrong type.
  """

  count: int = 1
  max_in_flight: int | None = None
  allow_batch_statistics: bool = False
  recompute: RecomputeConfig = NO_RECOMPUTATION
  sizes: tuple[int, ...] | None = None
  devices: tuple[int, ...] = ()

  @classmethod
  def from_microbatches(
    cls,
    microbatches: int | Sequence[int],
    max_in_flight: int | None = None,
    allow_batch_statistics: bool = False,
    recompute: RecomputeConfig = NO_RECOMPUTATION,
  ) -> "VariantConfig":
    """Takes a number of microbatches, or the examples of each."""
    sizes: Any = None
    count: Any = microbatches
    if isinstance(microbatches, list | tuple) or np.ndim(microbatches):
      sizes = tuple(microbatches)  # type: ignore[arg-type]
      count = max(1, len(sizes))
    return cls(count, max_in_flight, allow_batch_statistics, recompute, sizes)

  def __post_init__(self) -> None:
    if not isinstance(self.allow_batch_statistics, bool | np.bool_):
      raise ExtractionError(
        f"allow_batch_statistics is {self.allow_batch_statistics!r:.60}; it"
        " must be True or False"
      )
    numbers: dict[str, Any] = {"count": _number("microbatches", self.count)}
    if self.sizes is not None:
      numbers["sizes"] = _whole_sizes(self.sizes, numbers["count"])
    if self.max_in_flight is not None:
      numbers["max_in_flight"] = _number("max_in_flight", self.max_in_flight)
    for name, value in numbers.items():
      object.__setattr__(self, name, value)

  def check_batch(self, examples: int) -> None:
    """Raises ExtractionError if a batch cannot be divided this way."""
    if self.sizes is not None and sum(self.sizes) != examples:
      raise ExtractionError(
        f"microbatches is {shown(list(self.sizes))}, in all"
        f" {shown(sum(self.sizes))} examples, and the batch has {examples}:"
        " give sizes that add up to the batch, or their number"
      )
    if self.count > examples:
      raise ExtractionError(
        f"microbatches is {self.count}, and the batch has {examples}"
        f" example{'s' * (examples != 1)}: give at most that number"
      )

  def with_count(
    self, count: int, max_in_flight: int | None = None
  ) -> "VariantConfig":
    """Returns the variant in other, equal microbatches."""
    return dataclasses.replace(
      self, count=count, max_in_flight=max_in_flight, sizes=None
    )

  @property
  def words(self) -> str:
    """Number and sizes: "4 microbatches of 10, 10, 2 and 2 examples"."""
    text = f"{self.count} microbatches"
    if self.sizes is None:
      return text
    sizes = [str(size) for size in self.sizes]
    listed = " and ".join([", ".join(sizes[:-1]), sizes[-1]][len(sizes) < 2 :])
    return f"{text} of {listed} examples"

  @property
  def is_whole(self) -> bool:
    """Returns whether the step has a single microbatch."""
    return self.count == 1

  def over(self, cluster: Cluster) -> "VariantConfig":
    """Returns the step variant for the devices of a cluster, without CPUs.

    CPUs count where there are no other devices. A whole step, and a variant
    that has `devices`, stay as they are.
    """
    hosts = cluster.hosts[~cluster.is_cpu | cluster.is_cpu.all()]
    if self.is_whole or self.devices or len(hosts) == 1:
      return self
    devices = np.bincount(hosts)
    return dataclasses.replace(
      self, devices=tuple(devices[devices > 0].tolist())
    )

  @functools.cached_property
  def hosts(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Microbatches by host and device, in equal shares of consecutive ones.

    No more devices are used than there are microbatches in flight.
    """
    host_of = np.repeat(np.arange(len(self.devices)), self.devices)
    used = max(min(self.in_flight, len(host_of)), 1)
    device_of = np.arange(self.count) * used // self.count
    by_host: dict[int, list[tuple[int, ...]]] = {}
    for device in range(used):
      host = int(host_of[device]) if self.devices else 0
      microbatches = tuple(np.flatnonzero(device_of == device).tolist())
      by_host.setdefault(host, []).append(microbatches)
    return tuple(map(tuple, by_host.values()))

  @property
  def sums(self) -> Any:
    """Nested microbatches, whose gradients are added from the inside out.

    Those of a device are added from left to right, those of devices and of
    hosts in pairs. So a placement can add gradients before it sends them, in
    any grid, and a device that runs all microbatches holds few partial sums.
    """
    return _in_pairs([_in_pairs(devices) for devices in self.hosts])

  def relay_scope(self, index: int) -> str:
    """Scope of the relays through which a microbatch reads variables.

    A relay, such as "relay_to_host_1/...", brings a variable to all devices of
    a host by one transfer between hosts. Returns "" with one host, or one
    device of it.
    """
    for number, devices in enumerate(self.hosts):
      is_here = any(index in device for device in devices)
      if is_here and min(len(devices), len(self.hosts)) > 1:
        return f"{RELAY_SCOPE}{number}/"
    return ""

  @property
  def sum_scope(self) -> str:
    """Scope of the ops that add gradients: "accumulate_on_4_and_4"."""
    devices = "_and_".join(map(str, self.devices))
    return f"{SUM_SCOPE}_on_{devices}" if devices else SUM_SCOPE

  @property
  def in_flight(self) -> int:
    """Returns the largest number of microbatches in flight at once."""
    return min(self.max_in_flight or self.count, self.count)


def _in_pairs(parts: Sequence[Any]) -> Any:
  """Nests parts as a balanced binary tree; one part stays as it is."""
  if len(parts) == 1:
    return parts[0]
  half = (len(parts) + 1) // 2
  return _in_pairs(parts[:half]), _in_pairs(parts[half:])


def check_in_flight(config: VariantConfig) -> None:
  """Checks that a limit of microbatches in flight has microbatches to limit.

  Raises:
    ExtractionError: it would be ignored.
  """
  if config.is_whole and config.max_in_flight is not None:
    raise ExtractionError(
      f"max_in_flight is {config.max_in_flight}, and microbatches is 1: give"
      " both, or leave max_in_flight out"
    )


def _whole_sizes(sizes: Sequence[Any], count: int) -> tuple[int, ...]:
  numbers = [whole_number(size) for size in sizes]
  known = [number for number in numbers if number is not None and number >= 1]
  if len(known) == len(sizes) == count:
    return tuple(known)
  pairs = zip(sizes, numbers, strict=True)
  raise ExtractionError(
    f"microbatches is {shown([s if n is None else n for s, n in pairs])}; sizes"
    " must be one or more integers of at least 1, as many as there are"
    " microbatches"
  )


def _number(name: str, value: Any) -> int:
  if is_auto(value):
    raise ExtractionError(
      f"{name} is 'auto', which place_model, plan_model and tfplace-place"
      " choose with the placement: give a number"
    )
  number = whole_number(value)
  if number is not None and number >= 1 << 31:
    raise ExtractionError(
      f"{name} is {shown(value)}, more than any batch has examples"
    )
  if number is None or number < 1:
    text = f"{name} is {shown(value)}; it must be an integer of at least 1"
    if name == "microbatches":
      text += ", a list of sizes, or 'auto' for place_model and plan_model"
    raise ExtractionError(text)
  return number


WHOLE = VariantConfig()


def microbatches_of(ops: Iterable[str]) -> VariantConfig:
  """Infers the variant of a training step from the names of its ops.

  Names do not record `allow_batch_statistics`; it is False in the result.
  """
  last, held, names = -1, [], list(ops)
  recompute = recompute_of(names)
  sizes: dict[int, int] = {}
  devices: tuple[int, ...] = ()
  for op in names:
    if summed := _SUMMED.match(op):
      devices = tuple(map(int, summed[1].split("_and_")))
    index = microbatch_of(op)
    if index is not None:
      last = max(last, index)
      if name_in_whole(op) == f"{BATCH_SCOPE}/{BEGIN}":
        held.append(index)
      elif size := _SIZED.match(name_in_whole(op)):
        sizes[index] = int(size[1])
  if last < 1:
    return VariantConfig(recompute=recompute)
  in_order = tuple(sizes[index] for index in sorted(sizes))
  return VariantConfig(
    last + 1,
    min(held, default=None),
    recompute=recompute,
    sizes=in_order if len(sizes) == last + 1 else None,
    devices=devices,
  )


def proportional_sizes(sizes: Sequence[int], examples: int) -> tuple[int, ...]:
  """Divides `examples` in proportion to the sizes of microbatches."""
  total = sum(sizes)
  ends = [examples * sum(sizes[:i]) // total for i in range(len(sizes) + 1)]
  return tuple(end - begin for begin, end in itertools.pairwise(ends))


def plain_sizes(examples: int, count: int) -> tuple[int, ...]:
  """Returns the sizes of `count` nearly equal microbatches."""
  least, more = divmod(examples, count)
  return tuple(least + (i < more) for i in range(count))


def is_template(graph: Any) -> bool:
  """Returns whether microbatches copy a TensorFlow graph or one around it."""
  while graph is not None:
    if getattr(graph, "name", None) == TEMPLATE:
      return True
    graph = getattr(graph, "outer_graph", None)
  return False

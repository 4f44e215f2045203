"""A training step in microbatches that computes what the whole step does.

Here: how a step is split, and how its ops are named; without TensorFlow. The
step itself is in `split_step`.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfplace.core.protocols import whole_number
from tfplace.errors import ExtractionError

AUTO = "auto"  # in the place of a number: it is chosen with the placement
SCOPE = "microbatch_"
FUNCTION = "microbatch_step"  # the traced graph that microbatches are copies of
BATCH_SCOPE = "part_of_batch"  # in SCOPE: where the batch is cut
BEGIN = "begin"  # in BATCH_SCOPE: awaits the end of an earlier microbatch
_SCOPED = re.compile(rf"{SCOPE}(\d+)/(.*)", re.DOTALL)


def is_auto(microbatches: Any) -> bool:
  """Whether the number of microbatches is chosen with the placement."""
  return isinstance(microbatches, str) and microbatches == AUTO


def microbatch_of(op: str) -> int | None:
  """The microbatch of an op of a split step; None where all share it."""
  found = _SCOPED.match(op)
  return int(found[1]) if found else None


def name_in_whole(op: str) -> str:
  """The name of an op without its microbatch."""
  found = _SCOPED.match(op)
  return found[2] if found else op


def is_template(graph: Any) -> bool:
  """Whether microbatches are copies of the graph, or of one around it."""
  while graph is not None:
    if getattr(graph, "name", None) == FUNCTION:
      return True
    graph = getattr(graph, "outer_graph", None)
  return False


@dataclasses.dataclass(frozen=True)
class SplitConfig:
  """How a step is split.

  Attributes:
    microbatches: k: n examples are cut into parts of n // k or n // k + 1.
    max_in_flight: the forward pass of microbatch i + this starts only when the
      backward pass of microbatch i has ended; None: k.
    allow_batch_statistics: statistics over the batch (BatchNormalization) may
      be computed for each microbatch, as replicated training does.
  """

  microbatches: int = 1
  max_in_flight: int | None = None
  allow_batch_statistics: bool = False

  def __post_init__(self) -> None:
    """Turns NumPy's integers into Python's."""
    for name in ("microbatches", "max_in_flight"):
      number = whole_number(getattr(self, name))
      if number is not None:
        object.__setattr__(self, name, number)

  def check(self) -> None:
    """Checks the values.

    Raises:
      ExtractionError: a number is no integer of at least 1, or the permission
        is neither True nor False.
    """
    if not isinstance(self.allow_batch_statistics, bool | np.bool_):
      raise ExtractionError(
        f"allow_batch_statistics is {self.allow_batch_statistics!r:.60}; it"
        " must be True or False"
      )
    for name in ("microbatches", "max_in_flight"):
      value = getattr(self, name)
      if name == "max_in_flight" and value is None:
        continue
      if is_auto(value):
        raise ExtractionError(
          f"{name} is 'auto', which place_model, plan_model and tfplace-place"
          " choose with the placement: give a number"
        )
      number = whole_number(value)
      if number is None or number < 1:
        raise ExtractionError(
          f"{name} is {value!r:.60}; it must be an integer of at least 1"
        )

  @property
  def is_whole(self) -> bool:
    """Whether nothing is split."""
    return self.microbatches == 1

  @property
  def in_flight(self) -> int:
    """Microbatches that are under way at once, at most."""
    return min(self.max_in_flight or self.microbatches, self.microbatches)


WHOLE = SplitConfig()


def split_of(ops: Iterable[str]) -> SplitConfig:
  """How the step was split whose ops have these names.

  Whether statistics over the batch are allowed, names do not tell: no.
  """
  found, held = -1, []
  for op in ops:
    index = microbatch_of(op)
    if index is not None:
      found = max(found, index)
      if name_in_whole(op) == f"{BATCH_SCOPE}/{BEGIN}":
        held.append(index)
  if found < 1:
    return WHOLE
  return SplitConfig(found + 1, min(held, default=None))

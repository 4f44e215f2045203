"""Recomputation of activations in a training step, and the names of its ops.

Recomputation (gradient checkpointing; Chen et al., 2016) drops activations
after the forward pass. The backward pass reads clones of the forward ops, which
run when the gradient arrives. A segment is a set of forward ops that are
cloned together; tensors between segments are kept.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tfplace.errors import ExtractionError
from tfplace.graph.argument_checks import AUTO

ALL, NONE = "all", "none"
SCOPE = "recompute_"
_SCOPED = re.compile(rf"((?:microbatch_\d+/)?){SCOPE}(\d+)/(.*)", re.DOTALL)


def is_clone(op: str) -> bool:
  """Returns whether an op recomputes a forward op, by its name."""
  return _SCOPED.match(op) is not None


def segment_of(op: str) -> int | None:
  """Returns the number of the segment that a clone belongs to, or None."""
  scoped = _SCOPED.match(op)
  return int(scoped[2]) if scoped else None


def original_name(op: str) -> str:
  """Returns the name of the forward op that a clone repeats, or the name."""
  scoped = _SCOPED.match(op)
  return scoped[1] + scoped[3] if scoped else op


@dataclasses.dataclass(frozen=True)
class RecomputeConfig:
  """Layers that a training step recomputes; none by default.

  Attributes:
    everything: whether all layers are recomputed, in segments of consecutive
      ops that need the least memory.
    layers: names of layers, or patterns such as "block_*". Each layer that a
      name matches is a segment; the layers that one tuple matches are one.
    ops: names of the ops of each segment, without microbatch, as a planned
      step has them.
  """

  everything: bool = False
  layers: tuple[tuple[str, ...], ...] = ()
  ops: tuple[tuple[str, ...], ...] = ()

  @property
  def is_none(self) -> bool:
    """Returns whether the step keeps all activations."""
    return not (self.everything or self.layers or self.ops)

  def __str__(self) -> str:
    """Returns the request in words, for messages."""
    if self.everything:
      return ALL
    if self.layers:
      return ", ".join("+".join(names) for names in self.layers)
    count = sum(map(bool, self.ops))
    return NONE if self.is_none else f"{count} segment{'s' * (count != 1)}"


NO_RECOMPUTATION = RecomputeConfig()


def recompute_config(request: Any, may_choose: bool = False) -> RecomputeConfig:
  """Returns the config that a user asks for.

  Args:
    request: "none", "all", "auto", or a sequence of names of layers and
      patterns; a nested sequence makes one segment of several layers.
    may_choose: whether the caller chooses for "auto", which is nothing here.

  Raises:
    ExtractionError: the request has another form.
  """
  if isinstance(request, RecomputeConfig):
    return request
  if isinstance(request, str) and request == AUTO and not may_choose:
    raise ExtractionError(
      "recompute is 'auto', which planning chooses: give 'none', 'all' or a"
      " list of layers"
    )
  if isinstance(request, str) and request in (NONE, AUTO):
    return NO_RECOMPUTATION
  if isinstance(request, str) and request == ALL:
    return RecomputeConfig(everything=True)
  wrong = ExtractionError(
    f"recompute is {request!r:.60}; it must be 'none', 'all', 'auto', or a"
    " list of layer names and patterns such as ['block_*']"
  )
  if isinstance(request, str) or not isinstance(request, Sequence):
    raise wrong
  segments = [
    tuple(s) if isinstance(s, list | tuple) else (s,) for s in request
  ]
  names = [name for segment in segments for name in segment]
  if not names or not all(isinstance(name, str) and name for name in names):
    raise wrong
  return RecomputeConfig(layers=tuple(s for s in segments if s))


def recompute_of(ops: Iterable[str]) -> RecomputeConfig:
  """Infers what a step recomputes from the names of its ops.

  A segment keeps its number, so the same names come out again.
  """
  segments: dict[int, dict[str, None]] = {}
  for op in ops:
    scoped = _SCOPED.match(op)
    if scoped:
      segments.setdefault(int(scoped[2]), {})[scoped[3]] = None
  return RecomputeConfig(
    ops=tuple(
      tuple(segments.get(number, ()))
      for number in range(1 + max(segments, default=-1))
    )
  )

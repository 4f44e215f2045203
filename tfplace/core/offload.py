"""Offloading of activations in a training step, and the names of its ops.

Between the forward and the backward pass, an activation may wait in the memory
of another device, usually the host's (Rhu et al., vDNN, 2016). An identity op
holds it there until the backward pass arrives; its device is part of the
placement like any other. On its producer's device, the op changes nothing.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from tfplace.core.recompute import ALL, AUTO, NONE
from tfplace.errors import ExtractionError

SCOPE = "offload_"
_SCOPED = re.compile(rf"((?:microbatch_\d+/)?){SCOPE}(\d+)/(.*)", re.DOTALL)


def is_offload(op: str) -> bool:
  """Returns whether an op holds an activation for the backward pass."""
  return _SCOPED.match(op) is not None


def offload_name(op: str, output: int) -> str:
  """Returns the name of the op that holds an output of a forward op."""
  return f"{SCOPE}{output}/{op}"


@dataclasses.dataclass(frozen=True)
class OffloadConfig:
  """Activations of a training step to store elsewhere; none by default.

  Attributes:
    everything: whether to offload all activations that are worth it.
    tensors: names of the activations to offload, as (op, output), without
      microbatch, as a planned step has them.
  """

  everything: bool = False
  tensors: tuple[tuple[str, int], ...] = ()

  @property
  def is_none(self) -> bool:
    """Returns whether all activations stay where they were computed."""
    return not (self.everything or self.tensors)

  def __str__(self) -> str:
    """Returns the request in words, for messages."""
    if self.everything:
      return ALL
    return NONE if self.is_none else f"{len(self.tensors)} activations"


NO_OFFLOAD = OffloadConfig()


def offload_config(request: Any, may_choose: bool = False) -> OffloadConfig:
  """Returns the config that a user asks for.

  Args:
    request: "none", "all" or "auto".
    may_choose: whether the caller chooses for "auto", which is nothing here.

  Raises:
    ExtractionError: the request is something else.
  """
  if isinstance(request, OffloadConfig):
    return request
  if isinstance(request, str) and request == ALL:
    return OffloadConfig(everything=True)
  if isinstance(request, str) and request in (NONE, AUTO):
    if request == AUTO and not may_choose:
      raise ExtractionError(
        "offload is 'auto', which planning chooses: give 'none' or 'all'"
      )
    return NO_OFFLOAD
  raise ExtractionError(
    f"offload is {request!r:.60}; it must be 'none', 'all' or 'auto'"
  )


def offload_of(ops: Iterable[str]) -> OffloadConfig:
  """Infers what a step offloads from the names of its ops."""
  found = filter(None, map(_SCOPED.match, ops))
  return OffloadConfig(
    tensors=tuple(dict.fromkeys((match[3], int(match[2])) for match in found))
  )

"""A training step in microbatches that computes what the whole step does.

Here: how the ops of a split step are named. The step itself is in `split_step`.
"""

import re

SCOPE = "microbatch_"
FUNCTION = "microbatch_step"  # the traced graph that microbatches are copies of
_SCOPED = re.compile(rf"{SCOPE}(\d+)/(.*)", re.DOTALL)


def microbatch_of(op: str) -> int | None:
  """The microbatch of an op of a split step; None where all share it."""
  found = _SCOPED.match(op)
  return int(found[1]) if found else None


def name_in_whole(op: str) -> str:
  """The name of an op without its microbatch."""
  found = _SCOPED.match(op)
  return found[2] if found else op

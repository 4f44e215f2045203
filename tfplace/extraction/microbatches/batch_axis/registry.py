"""Table of transfer rules by op type.

A rule maps the abstract values of an op's inputs to those of its outputs: one
value for all outputs, or one per output. It raises `Mixes` if the op makes an
example depend on others. Rules are never called with mixed inputs.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tfplace.extraction.microbatches.batch_axis.values import OpPair, Value

Rule: TypeAlias = Callable[[OpPair, list[Value]], Value | Sequence[Value]]

RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
  """Registers a rule for ops of the given types."""

  def register(function: Rule) -> Rule:
    for op_type in op_types:
      assert op_type not in RULES, op_type
      RULES[op_type] = function
    return function

  return register

"""The table of transfer rules, by op type.

A rule gets an op and what its inputs hold, and returns what its outputs hold:
one value for all of them, or one for each. It raises `Mixes` if the op makes an
example depend on others. It is never asked about inputs that are mixed.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tfplace.extraction.microbatches.batch_axis.values import OpPair, Value

Rule: TypeAlias = Callable[[OpPair, list[Value]], Value | Sequence[Value]]

RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
  """Registers a rule for ops of these types."""

  def register(function: Rule) -> Rule:
    for op_type in op_types:
      assert op_type not in RULES, op_type
      RULES[op_type] = function
    return function

  return register

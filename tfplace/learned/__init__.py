"""Learned methods as placers; the `METHODS` of each describe its strategies."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from tfplace.errors import TrainingError
from tfplace.placers import registry

# Shape (None for dimensions that differ between problems) and dtype.
Tensor = tuple[tuple[int | None, ...], str]
# Argument names and types of a function, in order.
Signature = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Method:
  """Placer of a learned strategy; `training.methods` has the learners.

  Attributes:
    placer: "module:class" of a `Placer` with a field `policy`.
    version: Version of the features. Policies of other versions are rejected.
  """

  placer: str
  version: int


def find_method(strategy: str) -> Method:
  """Returns the method of a strategy.

  Raises:
    TrainingError: The strategy is unknown (the message lists the choices).
  """
  known = registry.STRATEGIES.get(strategy)
  if known is None or known.family != "learned":
    raise TrainingError(
      f"unknown strategy {strategy!r}; choose one of"
      f" {', '.join(registry.LEARNED)}"
    )
  package = importlib.import_module(known.path)
  return package.METHODS[strategy]

"""Learned placers, a folder per method, and their training.

A method's folder describes its strategies by `METHODS` in its `__init__.py`;
`LEARNED` of `tfplace.placers.registry` says which folder has which strategy.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from tfplace.errors import TrainingError
from tfplace.placers import registry

# Shape, None where it differs between problems, and dtype.
Tensor = tuple[tuple[int | None, ...], str]
# Names and kinds of a function's arguments, in order.
Signature = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Method:
  """What a learned strategy consists of.

  Classes are named, "module:class", and imported when asked for.

  Attributes:
    placer: a `Placer` with a field `policy`; needs the base install only.
    learner: a `train.learner.Learner`; needs a training process.
    version: of the features; a policy trained on others is refused.
    functions: of an exported policy, with their arguments: no SavedModel with
      other ones is loaded. Only dtypes count, whatever the shapes.
  """

  placer: str
  learner: str
  version: int
  functions: Mapping[str, Signature]


def find_method(strategy: str) -> Method:
  """The method behind a strategy.

  Raises:
    TrainingError: unknown strategy (lists the choices).
  """
  if strategy not in registry.LEARNED:
    raise TrainingError(
      f"unknown strategy {strategy!r}; choose one of"
      f" {', '.join(registry.LEARNED)}"
    )
  package = importlib.import_module(registry.LEARNED[strategy])
  return package.METHODS[strategy]


def learner_type(strategy: str) -> Any:
  """The `train.learner.Learner` of a strategy; needs a training process.

  Raises:
    TrainingError: unknown strategy (lists the choices).
  """
  module, name = find_method(strategy).learner.split(":")
  return getattr(importlib.import_module(module), name)

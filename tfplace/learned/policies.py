"""Exported policies: loading, inference and placers (base install)."""

import abc
import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from tfplace.errors import ExtractionError, TrainingError
from tfplace.formats.results import load_assignments
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Result
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.learned import policy_format
from tfplace.learned.policy_format import PLACEMENTS, PolicyInputs
from tfplace.placers.replan import carried_over
from tfplace.placers.tracker import Tracker

SHIPPED = pathlib.Path(__file__).parent / "pretrained"
SHIPPED_NAME = "shipped"  # Stands for the directory in `SHIPPED`.
_LEAST_KNOWN = 0.5  # Share of the ops that a placement of a policy must name.
# Policies of more graphs are general ones, and reading their placements would
# take longer than a search.
_MOST_FILES = 16


class Policy:
  """Loaded policy.

  Attributes:
    info: Content of its `policy.json`.

  Raises:
    TrainingError: The policy cannot be loaded, or loading would have side
      effects.
  """

  def __init__(self, directory: pathlib.Path, info: Mapping[str, Any]) -> None:
    # TensorFlow takes seconds to import, so it is imported only to run a
    # policy.
    from tfplace.extraction.safety import safe_loading

    self.info = info
    self._path = path = str(directory)
    try:
      self._module = safe_loading.load(path)
    except ExtractionError as error:
      raise TrainingError(
        f"policy {path!r} cannot be loaded: {error}"
      ) from error

  @property
  def weights(self) -> list[Any]:
    """Variables in the order of the network."""
    return list(self._module.weights)

  @property
  def axes(self) -> int:
    """Number of op-name axes that the encoder observes; 0 for none."""
    return int(self.info["network"].get("axes", 0))

  @property
  def types(self) -> list[str]:
    """Op types with an embedding of their own.

    Raises:
      TrainingError: `policy.json` names none.
    """
    types = self.info["network"].get("types")
    if types is None:
      raise TrainingError(
        f"policy {self._path!r}: {policy_format.INFO_FILE} names no op types"
        " ('types' of 'network'); export it again"
      )
    return list(types)

  def decisions(self, most: int | None = None) -> tuple[int | None, ...]:
    """Returns the numbers of decisions to place at; None is every group.

    These are the numbers used in training up to `most`, or `most` if unknown.
    """
    trained = self.info.get("decisions") or [most]
    if most is None:
      return tuple(dict.fromkeys(trained))
    return tuple(dict.fromkeys(min(n or most, most) for n in trained))

  def run(self, function: str, arrays: Iterable[np.ndarray]) -> Any:
    """Calls an exported function and returns its result as arrays.

    Raises:
      TrainingError: The function does not take these arrays.
    """
    import tensorflow as tf

    try:
      result = getattr(self._module, function)(*map(tf.constant, arrays))
    except (
      *(AttributeError, tf.errors.OpError, TypeError, ValueError),
    ) as error:
      raise TrainingError(
        f"policy {self._path!r} does not run with the sizes of its"
        f" {policy_format.INFO_FILE}: {error}"
      ) from error
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), result)

  def logits(self, inputs: PolicyInputs) -> np.ndarray:
    """Computes [N, D] float32 logits, about -1e9 where not allowed."""
    return self.run("logits", inputs.tensors().values())


def load_policy(
  directory: str | os.PathLike[str], strategy: str = "gdp"
) -> Policy:
  """Loads an exported policy.

  Raises:
    TrainingError: The directory contains no policy, or one of another strategy
      or feature version.
  """
  info = policy_format.read_info(directory, strategy)
  return Policy(pathlib.Path(directory), info)


def load_placers_policy(strategy: str, directory: str | None) -> Policy:
  """Loads the given policy, or the shipped one for None.

  Raises:
    TrainingError: No policy of the strategy ships; see also `load_policy`.
  """
  if directory is None:
    shipped = SHIPPED / strategy
    if not (shipped / policy_format.INFO_FILE).exists():
      raise TrainingError(
        f"no policy of strategy {strategy!r} ships with tfplace; train one"
        " with tfplace-train and give its directory (--policy)"
      )
    # Shipped policies never change, so they are cached.
    return _shipped(shipped, strategy)
  return load_policy(directory, strategy)


_shipped = functools.lru_cache(maxsize=4)(load_policy)


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyPlacer(abc.ABC):
  """Placer by a trained policy, zero-shot.

  Attributes:
    policy: Directory of an exported policy; None selects the shipped one.
  """

  policy: str | None = None
  name: ClassVar[str]

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Returns the best placement that the policy proposes.

    Raises:
      TrainingError: There is no policy, or it cannot be loaded.
      InfeasibleError: No tried placement fits in memory.
    """
    policy = load_placers_policy(self.name, self.policy)
    tracker = Tracker(self.name, problem, evaluator, budget)
    self._propose(policy, tracker, np.random.default_rng(seed))
    return tracker.result()

  @abc.abstractmethod
  def _propose(
    self, policy: Policy, tracker: Tracker, rng: np.random.Generator
  ) -> None:
    """Offers placements to the tracker until it is done."""


def starts(policy: str, problem: Problem) -> np.ndarray:
  """Returns the placements that the training of a policy found for a graph.

  Variants of the graph, whose names differ partly, get them, too.

  Args:
    policy: Directory of the policy.

  Returns:
    [num_starts, num_ops] int32 devices, see `replan.carried_over`; none for a
    graph of which no placement names at least half of the ops, and for a policy
    with more than 16 placements.

  Raises:
    FormatError: A file is no placement.
    OSError: A file cannot be read.
  """
  names, count = problem.graph.names, max(1, problem.graph.num_ops)
  rows = [np.zeros((0, problem.graph.num_ops), np.int32)]
  paths = sorted((pathlib.Path(policy) / PLACEMENTS).glob("*.json"))
  for path in paths if len(paths) <= _MOST_FILES else ():
    assignments = load_assignments(path)
    known = sum(name in assignments for name in names)
    if known >= _LEAST_KNOWN * count:
      rows.append(carried_over(problem, assignments))
  return np.concatenate(rows)

"""Training tasks: graphs to place and the rewards of placements."""

import dataclasses
import functools
import math
import zlib
from collections.abc import Iterable

import numpy as np

from tfplace.errors import TrainingError
from tfplace.graph import symmetry
from tfplace.graph.protocols import Evaluator
from tfplace.learned.decisions import Decisions

# Reward of infeasible placements, or the lowest feasible reward if that is
# lower; 7.4 times the baseline time. HDP and GDP use -10 for step times in
# seconds, mostly below 1.
INFEASIBLE = -2.0


@dataclasses.dataclass
class Task:
  """Graph to place and its best placement so far.

  Attributes:
    decisions: Problem and its decisions.
    evaluator: Evaluates placements of the problem.
    baseline_us: Step time that rewards are relative to.
    target: [num_decisions] placement to imitate.
    best_us: Best feasible step time so far; infinite if there is none.
    best: [num_decisions] placement of `best_us`, or None.
    evaluations: Number of placements evaluated so far.
  """

  decisions: Decisions
  evaluator: Evaluator
  baseline_us: float
  target: np.ndarray
  best_us: float = math.inf
  best: np.ndarray | None = None
  evaluations: int = 0

  def __post_init__(self) -> None:
    if not 0 < self.baseline_us < math.inf:
      name = self.decisions.problem.graph.name
      raise TrainingError(
        f"graph {name!r}: the baseline's step time is {self.baseline_us} us"
      )

  @functools.cached_property
  def name(self) -> str:
    """Description of graph, cluster and number of decisions."""
    problem = self.decisions.problem
    return (
      f"{problem.graph.name} on {problem.cluster.name},"
      f" {self.decisions.num_decisions} decisions"
    )

  @functools.cached_property
  def classes(self) -> np.ndarray:
    """[num_devices] result of `symmetry.device_classes`."""
    return symmetry.device_classes(self.decisions.problem.cluster)

  def evaluate(self, choices: np.ndarray) -> np.ndarray:
    """Maps [B, num_decisions] devices to [B] times, infinite if infeasible.

    Counts the placements and keeps the best.
    """
    devices = self.decisions.to_devices(choices)
    step_us = self.evaluator.step_times(devices)
    self.evaluations += len(choices)
    at = int(step_us.argmin())
    if step_us[at] < self.best_us:
      self.best_us, self.best = float(step_us[at]), choices[at].copy()
    return step_us

  def aim_at_best(self) -> None:
    """Makes the best placement the target, with devices named by first use."""
    if self.best is not None:
      self.target = symmetry.by_first_use(self.best, self.classes)


def checksum(arrays: Iterable[np.ndarray], digest: int = 0) -> int:
  """Computes the CRC-32 of the bytes of arrays, continued from `digest`."""
  for array in arrays:
    digest = zlib.crc32(array.tobytes(), digest)
  return digest


def log_rewards(step_us: np.ndarray, baseline_us: float) -> np.ndarray:
  """Computes [B] float32 rewards log(baseline / step time).

  They are not clipped from below: a random policy would get the same
  everywhere.

  Args:
    step_us: [B], infinite where infeasible.
    baseline_us: Step time of reward 0; 10% faster is worth 0.1.
  """
  with np.errstate(divide="ignore"):
    reward = np.log(baseline_us / step_us)
  fits = np.isfinite(step_us)
  worst = reward[fits].min(initial=INFEASIBLE)
  return np.where(fits, reward, worst).astype(np.float32)

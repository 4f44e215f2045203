"""Training tasks: graphs to place and the rewards of placements.

Rewards are not clipped from below: a random policy would get the same
everywhere.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from tfplace.core import symmetry
from tfplace.core.protocols import Evaluator
from tfplace.errors import TrainingError
from tfplace.learned import sampling
from tfplace.learned.decisions import Decisions
from tfplace.learned.sampling import Draws, Given, step_times
from tfplace.learned.train import demonstrations
from tfplace.learned.train.demonstrations import DemonstrationConfig
from tfplace.placers.dask_workers import Workers


@dataclasses.dataclass
class Task:
  """Graph to place and its best placement so far.

  Attributes:
    decisions: Problem and its decisions.
    evaluator: Evaluates placements of the problem.
    baseline_us: Step time that rewards are relative to.
    target: [num_decisions] placement to imitate.
    groupings: See `decisions.shared_noise`.
    best_us: Best feasible step time so far; infinite if there is none.
    best: [num_decisions] placement of `best_us`, or None.
    evaluations: Number of placements evaluated so far.
    workers: Workers that draw and evaluate samples; None does so here.
  """

  decisions: Decisions
  evaluator: Evaluator
  baseline_us: float
  target: np.ndarray
  groupings: tuple[np.ndarray, ...] = ()
  best_us: float = math.inf
  best: np.ndarray | None = None
  evaluations: int = 0
  workers: Workers | None = None

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
  def context(self) -> sampling.Context:
    """Data that all samples of the graph use."""
    return sampling.Context(self.decisions, self.evaluator, self.groupings)

  def named(self, choices: np.ndarray) -> np.ndarray:
    """Names identical devices of [num_decisions] choices by first use."""
    return symmetry.by_first_use(choices, self.context.classes)

  @functools.cached_property
  def _sampler(self) -> sampling.WorkerSampler | None:
    if self.workers is None:
      return None
    return sampling.WorkerSampler(self.context, self.workers)

  def compute(self, draws: Draws) -> Any:
    """Returns `draws.run`, computed on the workers if there are any."""
    sampler = self._sampler
    return draws.run(self.context) if sampler is None else sampler.run(draws)

  def draw(self, draws: Draws) -> Any:
    """Draws and evaluates samples and keeps the best, see `Drawn`."""
    drawn = self.compute(draws)
    self.keep(drawn.choices, drawn.step_us)
    return drawn

  def evaluate(self, choices: np.ndarray) -> np.ndarray:
    """Maps [B, num_decisions] devices to [B] times, infinite if infeasible."""
    return self.draw(Given(choices)).step_us

  def keep(self, choices: np.ndarray, step_us: np.ndarray) -> None:
    """Counts evaluated placements and keeps the best, like `evaluate`."""
    self.evaluations += len(choices)
    at = int(step_us.argmin())
    if step_us[at] < self.best_us:
      self.best_us, self.best = float(step_us[at]), choices[at].copy()


def make_task(
  decisions: Decisions,
  evaluator: Evaluator,
  shown: DemonstrationConfig | None = None,
  workers: Workers | None = None,
) -> Task:
  """Creates a task with the best demonstration as target.

  Demonstrations are always compared in the simulator, so that a resumed run has
  the same target.

  Raises:
    InfeasibleError: No demonstration fits in memory.
  """
  found = demonstrations.find(decisions, shown or DemonstrationConfig())
  classes = symmetry.device_classes(decisions.problem.cluster)
  choices = decisions.to_choices(found.best)
  choices = symmetry.by_first_use(choices, classes)
  step_us = step_times(evaluator, decisions.to_devices(choices[None]))[0]
  known = bool(np.isfinite(step_us))
  if not known:
    baseline = step_times(evaluator, found.best[None])[0]
  task = Task(
    decisions,
    evaluator,
    float(step_us if known else baseline),
    choices,
    groupings=decisions.explorations,
    evaluations=found.evaluations,
    workers=workers,
  )
  if known:
    task.best_us, task.best = float(step_us), choices
  return task


def log_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """Computes [B] float32 rewards log(baseline / step time).

  Args:
    step_us: [B], infinite where infeasible.
    baseline_us: Step time of reward 0; 10% faster is worth 0.1.
    infeasible: Reward of infeasible placements, or the lowest feasible reward
      if that is lower.
  """
  with np.errstate(divide="ignore"):
    reward = np.log(baseline_us / step_us)
  fits = np.isfinite(step_us)
  worst = min(infeasible, float(reward[fits].min(initial=infeasible)))
  return np.where(fits, reward, worst).astype(np.float32)

"""The tasks of a training run: a graph to place, and what a placement is worth.

Rewards are relative to a step time of the graph, on two scales: PPO's
logarithm, and the papers' negative root. Rewards have no lower bound: a policy
with random weights would see the same reward everywhere.
"""

import dataclasses
import functools
import math

import numpy as np

from tfplace.core import symmetry
from tfplace.core.protocols import Evaluator
from tfplace.errors import TrainingError
from tfplace.learned.decisions import Decisions
from tfplace.learned.train import demonstrations
from tfplace.learned.train.demonstrations import DemonstrationConfig


@dataclasses.dataclass
class Task:
  """One graph to place, and the best that was found for it.

  Attributes:
    decisions: the problem and its units of decision.
    evaluator: judges placements of the problem.
    baseline_us: step time that rewards are relative to.
    target: [num_decisions] placement to imitate.
    clusterings: see `decisions.shared_noise`.
    best_us: best feasible step time so far; infinite before the first.
    best: [num_decisions] the placement that has it, or None.
    evaluations: placements evaluated so far.
  """

  decisions: Decisions
  evaluator: Evaluator
  baseline_us: float
  target: np.ndarray
  clusterings: tuple[np.ndarray, ...] = ()
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
    """Says which graph is placed, on what, and at which size."""
    problem = self.decisions.problem
    return (
      f"{problem.graph.name} on {problem.cluster.name},"
      f" {self.decisions.num_decisions} decisions"
    )

  @functools.cached_property
  def classes(self) -> np.ndarray:
    """[num_devices] from `symmetry.device_classes`."""
    return symmetry.device_classes(self.decisions.problem.cluster)

  def evaluate(self, choices: np.ndarray) -> np.ndarray:
    """[B, num_decisions] devices -> [B] step times; infinite if infeasible."""
    step_us = step_times(self.evaluator, self.decisions.to_devices(choices))
    self.keep(choices, step_us)
    return step_us

  def keep(self, choices: np.ndarray, step_us: np.ndarray) -> None:
    """Counts evaluated placements and remembers the best; as `evaluate`."""
    self.evaluations += len(choices)
    at = int(step_us.argmin())
    if step_us[at] < self.best_us:
      self.best_us, self.best = float(step_us[at]), choices[at].copy()


def step_times(evaluator: Evaluator, devices: np.ndarray) -> np.ndarray:
  """[B, num_ops] devices -> [B] step times, infinite where infeasible."""
  run = getattr(evaluator, "run", None)
  if run is not None:  # the simulator's batch, without checks and reports
    batch = run(np.ascontiguousarray(devices, np.int32))
    return np.where(batch.feasible, batch.step_time_us, np.inf)
  evaluations = evaluator.evaluate(devices)
  return np.array(
    [e.step_time_us if e.feasible else np.inf for e in evaluations]
  )


def make_task(
  decisions: Decisions,
  evaluator: Evaluator,
  shown: DemonstrationConfig | None = None,
  changes: bool = False,
) -> Task:
  """The task of placing one problem, with the best demonstration as target, or
  of changing that demonstration.

  Demonstrations are compared in the simulator, whatever judges the policy:
  their best must be the same whenever the run goes on.

  Raises:
    InfeasibleError: no demonstration fits in memory.
  """
  found = demonstrations.find(decisions, shown or DemonstrationConfig())
  classes = symmetry.device_classes(decisions.problem.cluster)
  choices = decisions.to_choices(found.best)
  if changes:
    decisions = dataclasses.replace(decisions, base=found.best)
  else:
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
    clusterings=decisions.explorations,
    evaluations=found.evaluations,
  )
  if known:
    task.best_us, task.best = float(step_us), choices
  return task


def log_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """[B] float32 log(baseline / step time).

  Args:
    step_us: [B], infinite where a placement does not fit or cannot run.
    baseline_us: step time whose reward is 0; 10% faster is worth 0.1.
    infeasible: reward of what does not fit; less if anything that fits does
      not have more.
  """
  with np.errstate(divide="ignore"):
    return _below(np.log(baseline_us / step_us), step_us, infeasible)


def root_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """[B] float32 -sqrt(step time / baseline), as `log_rewards`.

  HDP has -sqrt(seconds), and -10 for what does not fit; GDP the same.
  """
  return _below(-np.sqrt(step_us / baseline_us), step_us, infeasible)


def _below(
  reward: np.ndarray, step_us: np.ndarray, infeasible: float
) -> np.ndarray:
  """`reward` where it fits; elsewhere `infeasible`, or the worst of those."""
  fits = np.isfinite(step_us)
  worst = min(infeasible, float(reward[fits].min(initial=infeasible)))
  return np.where(fits, reward, worst).astype(np.float32)

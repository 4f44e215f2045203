"""Placement as a tf-agents environment of one-step episodes.

An episode: the graph's number is seen, every decision is made at once, and the
reward says how the placement compares with the graph's baseline. What judges
placements (simulator or hardware) is behind the `Evaluator` seam.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from tfplace.core import symmetry
from tfplace.core.protocols import Evaluator
from tfplace.errors import TrainingError
from tfplace.learned.decisions import Decisions
from tfplace.learned.train.tasks import log_rewards
from tfplace.simulate import Simulator


@dataclasses.dataclass
class Task:
  """One graph to place, and the best that was found for it.

  Attributes:
    decisions: the problem and its units of decision.
    evaluator: judges placements of the problem.
    baseline_us: step time that rewards are relative to.
    target: [num_decisions] placement to imitate.
    hint: [num_decisions] placement that the policy sees among its features,
      or None.
    clusterings: [num_decisions] cluster of each decision, in several ways;
      decisions of one cluster explore together.
    best_us: best feasible step time so far; infinite before the first.
    best: [num_decisions] the placement that has it, or None.
    evaluations: placements evaluated so far.
  """

  decisions: Decisions
  evaluator: Evaluator
  baseline_us: float
  target: np.ndarray
  hint: np.ndarray | None = None
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
    """Says which graph is placed, on what, at which size, and how."""
    problem = self.decisions.problem
    seen = "" if self.hint is None else ", hinted"
    return (
      f"{problem.graph.name} on {problem.cluster.name},"
      f" {self.decisions.num_decisions} decisions{seen}"
    )

  @functools.cached_property
  def classes(self) -> np.ndarray:
    """[num_devices] from `symmetry.device_classes`."""
    return symmetry.device_classes(self.decisions.problem.cluster)

  @functools.cached_property
  def simulator(self) -> Simulator:
    """Of the problem, whatever judges it."""
    if isinstance(self.evaluator, Simulator):
      return self.evaluator
    return Simulator(self.decisions.problem)

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


class PlacementEnvironment(py_environment.PyEnvironment):
  """A batch of one-step episodes on the current graph."""

  def __init__(
    self,
    tasks: list[Task],
    samples: int,
    max_decisions: int,
    max_devices: int,
    infeasible_reward: float,
  ) -> None:
    self._tasks = tasks
    self._samples = samples
    self._infeasible = infeasible_reward
    self._graph = 0
    self._observation_spec = array_spec.BoundedArraySpec(
      (), np.int32, 0, len(tasks) - 1, name="graph"
    )
    self._action_spec = array_spec.BoundedArraySpec(
      (max_decisions,), np.int32, 0, max_devices - 1, name="devices"
    )
    super().__init__(handle_auto_reset=False)

  @property
  def batched(self) -> bool:
    return True

  @property
  def batch_size(self) -> int:
    return self._samples

  def observation_spec(self) -> array_spec.BoundedArraySpec:
    """The graph's number."""
    return self._observation_spec

  def action_spec(self) -> array_spec.BoundedArraySpec:
    """[max_decisions] devices; those past the graph's decisions are ignored."""
    return self._action_spec

  def select(self, graph: int) -> None:
    """Chooses the graph of the next episodes."""
    self._graph = graph

  def _observe(self) -> np.ndarray:
    return np.full(self._samples, self._graph, np.int32)

  def _reset(self) -> ts.TimeStep:
    return ts.restart(self._observe(), batch_size=self._samples)

  def _step(self, action: Any) -> ts.TimeStep:
    task = self._tasks[self._graph]
    choices = np.asarray(action)[:, : task.decisions.num_decisions]
    rewards = log_rewards(
      task.evaluate(choices), task.baseline_us, self._infeasible
    )
    return ts.termination(self._observe(), rewards)

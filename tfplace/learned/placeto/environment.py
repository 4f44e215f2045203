"""Placeto's episodes as a tf-agents environment (arXiv 1906.08879).

The groups of a graph are visited once, in order; each step re-places one, and
its reward is by how much the step time fell. Many episodes advance together,
so a step of all of them is one batched simulation.
"""

from typing import Any

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from tfplace.learned.gdp.environment import Task
from tfplace.learned.placeto.features import Look, Observer
from tfplace.learned.placeto.learner import PlacetoConfig


def observation_spec(
  graphs: int, decisions: int, devices: int
) -> dict[str, array_spec.ArraySpec]:
  """The state of one episode, padded to the largest graph.

  Bounded, since building a network samples it. `step` is the number of
  decisions once all are made; `cost` is that of the placement now.
  """
  bounded = array_spec.BoundedArraySpec
  return {
    "graph": bounded((), np.int32, 0, graphs - 1, "graph"),
    "step": bounded((), np.int32, 0, decisions, "step"),
    "placement": bounded((decisions,), np.int32, 0, devices - 1, "placement"),
    "start": bounded((decisions,), np.float32, 0.0, 1.0, "start"),
    "cost": bounded((), np.float32, -10.0, 10.0, "cost"),
  }


def costs(task: Task, look: Look, config: PlacetoConfig) -> np.ndarray:
  """[B] float64: step times relative to the baseline's, and the penalty."""
  ratio = look.step_us / task.baseline_us
  with np.errstate(divide="ignore"):
    cost = np.log(ratio) if config.log_reward else ratio - 1.0
  cost = cost + config.memory_penalty * look.excess_gb
  return np.minimum(cost, config.max_cost)


class PlacetoEnvironment(py_environment.PyEnvironment):
  """Episodes on the current graph that advance in lockstep.

  Attributes:
    final_us: [B] step times of the placements as they are now, infinite where
      one does not fit.
  """

  def __init__(
    self,
    tasks: list[Task],
    number: int,
    max_decisions: int,
    max_devices: int,
    config: PlacetoConfig,
  ) -> None:
    self._tasks = tasks
    self._observers = [Observer(t.decisions, t.evaluator) for t in tasks]
    self._number = number
    self._config = config
    self._observation_spec = observation_spec(
      len(tasks), max_decisions, max_devices
    )
    self._action_spec = array_spec.BoundedArraySpec(
      (), np.int32, 0, max_devices - 1, name="device"
    )
    self._max_decisions = max_decisions
    self._graph = 0
    self._place = np.zeros(0, np.int32)
    super().__init__(handle_auto_reset=False)

  @property
  def batched(self) -> bool:
    return True

  @property
  def batch_size(self) -> int:
    return self._number

  def observation_spec(self) -> dict[str, array_spec.ArraySpec]:
    """See `observation_spec`."""
    return self._observation_spec

  def action_spec(self) -> array_spec.BoundedArraySpec:
    """The device of the current group."""
    return self._action_spec

  def select(self, graph: int, choices: np.ndarray) -> None:
    """Chooses the graph of the next episodes and their first placements.

    Args:
      graph: number of the task.
      choices: [B, N] int32 allowed devices.
    """
    self._graph = graph
    self._first = choices

  def _reset(self) -> ts.TimeStep:
    self._choices = self._first.copy()
    self._now = 0
    self._cost = self._look()
    return ts.restart(self._observe(), batch_size=self._number)

  def _step(self, action: Any) -> ts.TimeStep:
    before = self._cost
    self._choices[:, self._now] = action
    self._now += 1
    self._cost = self._look()
    reward = (before - self._cost).astype(np.float32)
    observation = self._observe()
    if self._now == self._choices.shape[1]:
      return ts.termination(observation, reward)
    return ts.transition(observation, reward, np.ones(self._number, np.float32))

  def _look(self) -> np.ndarray:
    """[B] costs of the placements as they are; notes the best."""
    task = self._tasks[self._graph]
    look = self._observers[self._graph].look(self._choices)
    self._starts = look.start
    self.final_us = look.feasible_us
    task.keep(self._choices, self.final_us)
    return costs(task, look, self._config)

  def _observe(self) -> dict[str, np.ndarray]:
    more = self._max_decisions - self._choices.shape[1]
    padding = ((0, 0), (0, more))
    return {
      "graph": np.full(self._number, self._graph, np.int32),
      "step": np.full(self._number, self._now, np.int32),
      "placement": np.pad(self._choices, padding),
      "start": np.pad(self._starts, padding),
      "cost": self._cost.astype(np.float32),
    }

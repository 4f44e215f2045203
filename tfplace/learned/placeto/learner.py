"""Learner of Placeto: episodes, imitation and reinforcement learning.

An episode visits the groups of a graph in order. Each step re-places one group
and is rewarded by the decrease of the step time (arXiv 1906.08879). Episodes
advance in parallel, so that each step is one batched simulation.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.placeto import features
from tfplace.learned.placeto.agents import (
  PlacetoConfig,
  PPOUpdate,
  ReinforceUpdate,
)
from tfplace.learned.placeto.features import (
  Look,
  Looks,
  fast_devices,
  random_choices,
)
from tfplace.learned.placeto.network import (
  PlacetoNetwork,
  PlacetoNetworkConfig,
  exportable,
)
from tfplace.learned.policy_format import Exportable
from tfplace.learned.train import policy_step, trajectory
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.learner import Learner, Step
from tfplace.learned.train.objectives import imitation_loss, mean_entropy
from tfplace.learned.train.ppo import GraphBank
from tfplace.learned.train.tasks import Task

_UPDATES: dict[str, type[PPOUpdate] | type[ReinforceUpdate]] = {
  "ppo": PPOUpdate,
  "reinforce": ReinforceUpdate,
}


class Episodes:
  """Parallel episodes on one graph.

  Attributes:
    final_us: [B] step times of the current placements, infinite where
      infeasible.
  """

  def __init__(
    self, tasks: list[Task], max_decisions: int, config: PlacetoConfig
  ) -> None:
    self._tasks = tasks
    self._max_decisions = max_decisions
    self._config = config

  def reset(self, graph: int, choices: np.ndarray) -> ts.TimeStep:
    """Starts episodes on a graph from [B, N] int32 allowed devices."""
    self._graph, self._choices, self._now = graph, choices.copy(), 0
    self._first_cost = self._cost = self._look()
    return ts.restart(self._observe(), batch_size=len(choices))

  def step(self, action: np.ndarray) -> ts.TimeStep:
    """Applies [B] devices to the current group."""
    before, count = self._cost, self._choices.shape[1]
    self._choices[:, self._now % count] = action
    self._now += 1
    self._cost = self._look()
    is_over = self._now == self._config.visits * count
    if not self._config.intermediate_rewards:
      before = self._first_cost if is_over else self._cost
    reward = (before - self._cost).astype(np.float32)
    observation = self._observe()
    if is_over:
      return ts.termination(observation, reward)
    return ts.transition(observation, reward, np.ones_like(reward))

  def _look(self) -> np.ndarray:
    """Returns [B] costs of the current placements and keeps the best."""
    task = self._tasks[self._graph]
    look = task.compute(Looks(self._choices))
    self._starts = look.start
    self.final_us = look.feasible_us
    task.keep(self._choices, self.final_us)
    return _costs(task, look, self._config)

  def _observe(self) -> dict[str, np.ndarray]:
    number, count = self._choices.shape
    padding = ((0, 0), (0, self._max_decisions - count))
    return {
      "graph": np.full(number, self._graph, np.int32),
      "step": np.full(number, self._now, np.int32),
      "placement": np.pad(self._choices, padding),
      "start": np.pad(self._starts, padding),
      "cost": self._cost.astype(np.float32),
    }


class PlacetoLearner(Learner):
  """Learner of a Placeto policy on a fixed list of graphs.

  Of the `samples` episodes, the first takes the most probable devices and is
  not used for training. The others are sampled.
  """

  network_type: ClassVar[type] = PlacetoNetworkConfig
  method_type: ClassVar[type] = PlacetoConfig
  # An episode visits every group, and each visit observes all of them.
  max_decisions: ClassVar[int | None] = 512

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._bank = GraphBank(self.inputs, features.SIGNATURE)
    self.policy = PlacetoNetwork(self.sizes)
    update = _UPDATES[self._method.algorithm]
    self._update = update(self._bank, self.policy, self._method)
    self.imitation_optimizer = self._adam(config.imitation.learning_rate)
    self._fast = [fast_devices(task.decisions) for task in tasks]
    self._episodes = Episodes(tasks, self._bank.max_decisions, self._method)
    self._imitate = tf.function(self._imitation_step, autograph=False)

  def _extract(self, task: Task) -> features.PlacetoFeatures:
    return features.extract(task.decisions)

  @classmethod
  def method_of(cls, asked: Mapping[str, Any]) -> PlacetoConfig:
    """See `Learner`; both algorithms use the shared settings."""
    own = ("algorithm", "visits", "intermediate_rewards")
    mine = {name: asked[name] for name in own if name in asked}
    numbers = ("samples", "learning_rate", "entropy", "elite")
    given = {k: v for k, v in asked.items() if k in numbers and v is not None}
    first = {
      f"first_{name}": given[name]
      for name in ("learning_rate", "entropy")
      if name in given
    }
    return PlacetoConfig(PPOConfig(**given), **mine, **first)

  def tracked(self) -> dict[str, Any]:
    return {**super().tracked(), **self._update.tracked()}

  def exportable(self) -> Exportable:
    """Returns the network as a function of features and state."""
    return exportable(self.policy)

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """Runs one iteration: parallel episodes, then an update."""
    first = self._first_placements(graph, rng)
    episodes, entropy = self._play(graph, first, rng)
    final_us = self._episodes.final_us
    losses = self._update.update(episodes, rng)
    return Step(
      reward=float(episodes.reward.numpy().sum(axis=1).mean()),
      greedy_us=float(final_us[0]),
      sample_us=float(np.median(final_us[1:])),
      entropy=entropy,
      clip_fraction=losses.clip_fraction,
      policy_loss=losses.policy,
      value_loss=losses.value,
    )

  def _first_placements(
    self, graph: int, rng: np.random.Generator
  ) -> np.ndarray:
    """Returns [B, N]: random placements, then copies of the best."""
    number, task = self._method.ppo.samples, self._tasks[graph]
    choices = random_choices(self._fast[graph], number, rng)
    best = round(self._method.from_best * number)
    if task.best is not None and best:
      choices[max(1, number - best) :] = task.best
    return choices

  def _play(
    self, graph: int, first: np.ndarray, rng: np.random.Generator
  ) -> tuple[trajectory.Trajectory, float]:
    """Plays episodes; returns [B - 1, visits * N + 1] steps and entropy."""
    now = self._episodes.reset(graph, first)
    steps, entropy = [], 0.0
    count = self._method.visits * first.shape[1]
    for _ in range(count):
      info = self._update.look(now)
      logits = info["dist_params"]["logits"].numpy()
      noise = rng.gumbel(size=logits.shape)
      noise[0] = 0.0
      action = (logits + noise).argmax(axis=1).astype(np.int32)
      after = self._episodes.step(action)
      steps.append(_step(now, action, info, after))
      entropy += mean_entropy(logits[1:]) / count
      now = after
    # PPO needs a value after the last step.
    boundary = ts.restart(now.observation, batch_size=len(action))
    steps.append(_step(now, action, self._update.look(now), boundary))
    episodes = tf.nest.map_structure(
      lambda *parts: tf.stack([p[1:] for p in parts], axis=1), *steps
    )
    return episodes, entropy

  def imitate(self, graph: int) -> float:
    """Takes one gradient step toward the target; returns the loss.

    Each state is a random step of an episode that has followed the target from
    a random placement. Samples depend only on the seed and the number of
    imitation steps.
    """
    task = self._tasks[graph]
    done = int(self.imitation_optimizer.iterations)
    rng = np.random.default_rng([self._config.seed, done, graph])
    number, count = self._method.ppo.samples, task.decisions.num_decisions
    choices = random_choices(self._fast[graph], number, rng)
    step = rng.integers(0, count, number).astype(np.int32)
    choices = np.where(np.arange(count) < step[:, None], task.target, choices)
    choices = choices.astype(np.int32)
    look = task.compute(Looks(choices))
    task.keep(choices, look.feasible_us)
    state = {"placement": choices, "start": look.start, "step": step}
    return float(
      self._imitate(
        tf.constant(graph),
        {name: tf.constant(array) for name, array in state.items()},
        tf.constant(task.target[step].astype(np.int32)),
      )
    )

  def _imitation_step(
    self, graph: tf.Tensor, state: dict[str, tf.Tensor], target: tf.Tensor
  ) -> tf.Tensor:
    with tf.GradientTape() as tape:
      inputs = self._bank.get(graph)
      loss = imitation_loss(
        self.policy((inputs, state)),
        tf.gather(inputs["allowed"], state["step"]),
        target,
        self._config.imitation.smoothing,
      )
    norm = self._method.ppo.max_gradient_norm
    self._descend(tape, loss, self.imitation_optimizer, norm)
    return loss


def _costs(task: Task, look: Look, config: PlacetoConfig) -> np.ndarray:
  """Returns [B] float64 log relative step times plus memory penalties."""
  with np.errstate(divide="ignore"):
    cost = np.log(look.step_us / task.baseline_us)
  cost = cost + config.memory_penalty * look.excess_gb
  return np.minimum(cost, config.max_cost)


def _step(
  now: ts.TimeStep, action: np.ndarray, info: Any, after: ts.TimeStep
) -> trajectory.Trajectory:
  made = policy_step.PolicyStep(action, (), info)
  return trajectory.from_transition(now, made, after)

"""How Placeto is trained; plain values.

Placeto in training: episodes, imitation and reinforcement learning.

A `Learner` (see `strategies`): no loop over iterations here, no files."""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tfplace.errors import TrainingError
from tfplace.learned.exported import Exportable
from tfplace.learned.gdp.environment import Task
from tfplace.learned.placeto import export, features
from tfplace.learned.placeto.agent_networks import PlacetoBank
from tfplace.learned.placeto.agents import PPOUpdate
from tfplace.learned.placeto.environment import PlacetoEnvironment
from tfplace.learned.placeto.features import (
  Observer,
  fast_devices,
  random_choices,
)
from tfplace.learned.placeto.network import PlacetoNetwork, PlacetoNetworkConfig
from tfplace.learned.placeto.reinforce import ReinforceUpdate
from tfplace.learned.train.config import TrainConfig
from tfplace.learned.train.objectives import (
  clipped,
  imitation_loss,
  mean_entropy,
)
from tfplace.learned.train.strategies import Step

ALGORITHMS = ("ppo", "reinforce")


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Episodes, and what is done with them.

  The paper's values where it gives any (arXiv 1906.08879 and its code); PPO is
  tfplace's own choice. Sizes shared with other strategies are in `PPOConfig`:
  `samples` is the number of episodes that advance together.

  Attributes:
    algorithm: "ppo" or "reinforce".
    log_reward: a reward is the difference of the logarithms of step times,
      else of step times over the task's baseline.
    memory_penalty: added to the cost per GB above a device's memory (the
      paper's code: 2).
    max_cost: bound on the cost, which is 0 at the baseline. The paper gives
      no value; 9 is 8,100 times the baseline's step time. (At 3, or 20 times,
      most random placements with a CPU among the devices were worth the same.)
    from_best: share of the episodes that start from the best placement so far;
      the others start from a random one. (The paper's first placement is
      arbitrary; its code offers both.)
    discount: of later rewards (paper: 1).
    gae_lambda: of PPO's advantages. The paper has no PPO; chosen by trial.
    minibatch: states per gradient step of PPO; bounds memory.
    first_learning_rate, last_learning_rate: of REINFORCE's Adam.
    first_entropy, last_entropy: weight of the entropy in REINFORCE.
    anneal_iterations: over so many iterations go both from first to last,
      linearly. The paper gives no value.
    baseline_rounds: REINFORCE's baseline of a step is its mean return over so
      many iterations (the paper's code: 10).
    max_gradient_norm: of REINFORCE (the paper's code: 1.25).
  """

  algorithm: str = "ppo"
  log_reward: bool = True
  memory_penalty: float = 2.0
  max_cost: float = 9.0
  from_best: float = 0.5
  discount: float = 1.0
  gae_lambda: float = 0.9
  minibatch: int = 128
  first_learning_rate: float = 1e-3
  last_learning_rate: float = 1e-4
  first_entropy: float = 1.0
  last_entropy: float = 0.0
  anneal_iterations: int = 200
  baseline_rounds: int = 10
  max_gradient_norm: float = 1.25

  def __post_init__(self) -> None:
    if self.algorithm not in ALGORITHMS:
      raise TrainingError(
        f"Placeto's algorithm is one of {', '.join(ALGORITHMS)}, not"
        f" {self.algorithm!r}"
      )


# An episode visits every group, and each visit is a look at all of them.
MAX_DECISIONS = 512
_UPDATES: dict[str, type[PPOUpdate] | type[ReinforceUpdate]] = {
  "ppo": PPOUpdate,
  "reinforce": ReinforceUpdate,
}


class PlacetoLearner(tf.Module):
  """A Placeto policy in training on a fixed list of graphs.

  Of `PPOConfig.samples` episodes the first takes the most probable devices and
  is not trained on; the others draw theirs.

  Attributes:
    policy: the network.
    imitation_optimizer: Adam of the warm start.

  Raises:
    TrainingError: a graph with more decisions than `MAX_DECISIONS`.
  """

  network_type: ClassVar[type] = PlacetoNetworkConfig
  features_version: ClassVar[int] = features.VERSION

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(name="placeto_learner")
    self._tasks, self._config = tasks, config
    self._settings: PlacetoConfig = config.placeto
    for task in tasks:
      _check_size(task)
    tf.keras.utils.set_random_seed(config.seed)
    graphs = [features.extract(task.decisions) for task in tasks]
    self._digest = _digest(graphs)
    self._bank = PlacetoBank(graphs)
    self.policy = PlacetoNetwork(config.network)
    update = _UPDATES[self._settings.algorithm]
    self._update = update(self._bank, self.policy, config.ppo, self._settings)
    self.imitation_optimizer = tf.keras.optimizers.Adam(
      config.imitation.learning_rate
    )
    self.imitation_optimizer.build(self.policy.trainable_variables)
    self._observers = [Observer(t.decisions, t.evaluator) for t in tasks]
    self._fast = [fast_devices(task.decisions) for task in tasks]
    self._environment = PlacetoEnvironment(
      tasks,
      config.ppo.samples,
      self._bank.max_decisions,
      self._bank.max_devices,
      self._settings,
    )
    self._imitate = tf.function(self._imitation_step, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """All that decides what the next step does, for a checkpoint."""
    return {
      "policy": self.policy,
      "imitation_optimizer": self.imitation_optimizer,
      **self._update.tracked(),
    }

  def set_weights(self, weights: Sequence[tf.Variable]) -> None:
    """Takes over the weights of another policy of the same sizes.

    Raises:
      TrainingError: they do not fit.
    """
    mine = self.policy.variables
    if [w.shape for w in weights] != [w.shape for w in mine]:
      raise TrainingError(
        f"the policy to start from has {len(weights)} weights of other sizes"
        f" than the network's {len(mine)}"
      )
    for weight, value in zip(mine, weights, strict=True):
      weight.assign(value)

  def fingerprint(self) -> dict[str, Any]:
    """A digest of the features."""
    return {"features": self._digest}

  def exportable(self) -> Exportable:
    """The network as a function of a problem's features and a state."""
    return export.exportable(self.policy)

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """One iteration: episodes that advance together, then an update.

    Args:
      graph: number of the graph.
      rng: draws first placements, devices and minibatches.
    """
    task = self._tasks[graph]
    self._environment.select(graph, self._first_placements(graph, rng))
    episodes, entropy = self._play(task.decisions.num_decisions, rng)
    final_us = self._environment.final_us
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
    """[B, N]: random ones, then the best so far; the first is random."""
    number, task = self._config.ppo.samples, self._tasks[graph]
    choices = random_choices(self._fast[graph], number, rng)
    best = round(self._settings.from_best * number)
    if task.best is not None and best:
      choices[max(1, number - best) :] = task.best
    return choices

  def _play(
    self, count: int, rng: np.random.Generator
  ) -> tuple[trajectory.Trajectory, float]:
    """Whole episodes but the first: [B - 1, N + 1] steps, mean entropy."""
    now = self._environment.reset()
    steps, entropy = [], 0.0
    for _ in range(count):
      info = self._update.look(now)
      logits = info["dist_params"]["logits"].numpy()
      noise = rng.gumbel(size=logits.shape)
      noise[0] = 0.0
      action = (logits + noise).argmax(axis=1).astype(np.int32)
      after = self._environment.step(action)
      steps.append(_step(now, action, info, after))
      entropy += mean_entropy(logits[1:]) / count
      now = after
    # PPO asks for a value after the last step.
    boundary = ts.restart(now.observation, batch_size=len(action))
    steps.append(_step(now, action, self._update.look(now), boundary))
    episodes = tf.nest.map_structure(
      lambda *parts: tf.stack([p[1:] for p in parts], axis=1), *steps
    )
    return episodes, entropy

  def imitate(self, graph: int) -> float:
    """One gradient step towards the graph's target; returns the loss.

    Each state is somewhere in an episode that has followed the target up to
    there from a random placement. What is drawn follows from the seed and the
    number of imitation steps so far.
    """
    task = self._tasks[graph]
    done = int(self.imitation_optimizer.iterations)
    rng = np.random.default_rng([self._config.seed, done, graph])
    number, count = self._config.ppo.samples, task.decisions.num_decisions
    choices = random_choices(self._fast[graph], number, rng)
    step = rng.integers(0, count, number).astype(np.int32)
    choices = np.where(np.arange(count) < step[:, None], task.target, choices)
    choices = choices.astype(np.int32)
    look = self._observers[graph].look(choices)
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
    variables = self.policy.trainable_variables
    with tf.GradientTape() as tape:
      inputs = self._bank.get(graph)
      loss = imitation_loss(
        self.policy((inputs, state)),
        tf.gather(inputs["allowed"], state["step"]),
        target,
        self._config.imitation.smoothing,
      )
    gradients = tape.gradient(loss, variables)
    gradients = clipped(gradients, self._config.ppo.max_gradient_norm)
    self.imitation_optimizer.apply_gradients(
      zip(gradients, variables, strict=True)
    )
    return loss


def _check_size(task: Task) -> None:
  count = task.decisions.num_decisions
  if not 0 < count <= MAX_DECISIONS:
    name = task.decisions.problem.graph.name
    raise TrainingError(
      f"graph {name!r} has {count} decisions; Placeto, which visits them one"
      f" after the other, takes 1 to {MAX_DECISIONS}: give"
      " --max_decisions=256 or fewer"
    )


def _digest(graphs: Sequence[features.PlacetoFeatures]) -> int:
  digest = 0
  for graph in graphs:
    for array in graph.tensors().values():
      digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
  return digest


def _step(
  now: ts.TimeStep, action: np.ndarray, info: Any, after: ts.TimeStep
) -> trajectory.Trajectory:
  """[B] steps of the episodes, as arrays."""
  return trajectory.Trajectory(
    step_type=now.step_type,
    observation=now.observation,
    action=action,
    policy_info=info,
    next_step_type=after.step_type,
    reward=after.reward,
    discount=after.discount,
  )

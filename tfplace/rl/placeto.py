"""Placeto in training: episodes, imitation and reinforcement learning.

A `Learner` (see `strategies`): no loop over iterations here, no files.
"""

import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tfplace.errors import TrainingError
from tfplace.policies import keras2, placeto_features

keras2.check_training_process()

import tensorflow as tf  # noqa: E402
from tf_agents.trajectories import time_step as ts  # noqa: E402
from tf_agents.trajectories import trajectory  # noqa: E402

from tfplace.policies import placeto_export  # noqa: E402
from tfplace.policies.exported import Exportable  # noqa: E402
from tfplace.policies.placeto_network import (  # noqa: E402
  PlacetoNetwork,
  PlacetoNetworkConfig,
)
from tfplace.policies.placeto_states import (  # noqa: E402
  Observer,
  fast_devices,
  random_choices,
)
from tfplace.rl.config import TrainConfig  # noqa: E402
from tfplace.rl.environment import Task  # noqa: E402
from tfplace.rl.gradients import clipped  # noqa: E402
from tfplace.rl.objectives import (  # noqa: E402
  imitation_loss,
  mean_entropy,
)
from tfplace.rl.placeto_agents import PPOUpdate  # noqa: E402
from tfplace.rl.placeto_config import PlacetoConfig  # noqa: E402
from tfplace.rl.placeto_environment import PlacetoEnvironment  # noqa: E402
from tfplace.rl.placeto_networks import PlacetoBank  # noqa: E402
from tfplace.rl.placeto_reinforce import ReinforceUpdate  # noqa: E402
from tfplace.rl.strategies import Step  # noqa: E402

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
  features_version: ClassVar[int] = placeto_features.VERSION

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(name="placeto_learner")
    self._tasks, self._config = tasks, config
    self._settings: PlacetoConfig = config.placeto
    for task in tasks:
      _check_size(task)
    tf.keras.utils.set_random_seed(config.seed)
    graphs = [placeto_features.extract(task.decisions) for task in tasks]
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
    return placeto_export.exportable(self.policy)

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


def _digest(graphs: Sequence[placeto_features.PlacetoFeatures]) -> int:
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

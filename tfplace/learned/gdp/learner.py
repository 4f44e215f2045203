"""GDP in training: its network, its agent, its steps of imitation and PPO.

No loop over iterations here, no files: `trainer` has those.
"""

import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tfplace.core import symmetry
from tfplace.errors import TrainingError
from tfplace.learned import sampling
from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import export, features
from tfplace.learned.gdp.agent import make_agent
from tfplace.learned.gdp.environment import PlacementEnvironment, Task
from tfplace.learned.gdp.network import NetworkConfig, PlacementNetwork
from tfplace.learned.train import credit
from tfplace.learned.train.checkpoints import MovingAverage
from tfplace.learned.train.config import TrainConfig
from tfplace.learned.train.graph_bank import GraphBank
from tfplace.learned.train.objectives import (
  clipped,
  imitation_loss,
  mean_entropy,
)
from tfplace.learned.train.strategies import Step


class GdpLearner(tf.Module):
  """A GDP policy in training on a fixed list of graphs; a `Learner`.

  Attributes:
    policy: the network.
    agent: its PPO agent.
    imitation_optimizer: Adam of the warm start.
  """

  network_type: ClassVar[type] = NetworkConfig
  features_version: ClassVar[int] = features.VERSION

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(name="learner")
    self._config = config
    self._tasks = tasks
    tf.keras.utils.set_random_seed(config.seed)
    network = config.network or NetworkConfig()
    graphs = [
      features.extract(task.decisions, task.hint, network.axes)
      for task in tasks
    ]
    self._digest = 0
    for graph in graphs:
      for array in graph.tensors().values():
        self._digest = zlib.crc32(
          np.ascontiguousarray(array).tobytes(), self._digest
        )
    self._bank = GraphBank(graphs)
    self.policy = PlacementNetwork(network)
    if self._bank.is_large:
      self.policy.prepare(self._bank.get(tf.constant(0)))
    self.agent = make_agent(self._bank, self.policy, config.ppo)
    self.agent.initialize()
    self.imitation_optimizer = tf.keras.optimizers.Adam(
      config.imitation.learning_rate
    )
    self._environment = PlacementEnvironment(
      tasks,
      config.ppo.samples,
      self._bank.max_decisions,
      self._bank.max_devices,
      config.ppo.infeasible_reward,
    )
    # Built now, so that a checkpoint finds their slots.
    self.imitation_optimizer.build(self.policy.trainable_variables)
    self.agent.build_optimizer()
    self._averaged = PlacementNetwork(network)
    self._averaged.prepare(self._bank.get(tf.constant(0)))
    self._average = MovingAverage(
      self.policy.variables, self._averaged.variables, config.ppo.averaging
    )
    self._train = tf.function(self.agent.train, autograph=False)
    self._look = tf.function(self._distribution, autograph=False)
    self._imitate = tf.function(self._imitation_step, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """All that decides what the next step does, for a checkpoint."""
    return {
      "policy": self.policy,
      "averaged": self._averaged,
      "average": self._average,
      "value": self.agent.value_net,
      "optimizer": self.agent.optimizer,
      "imitation_optimizer": self.imitation_optimizer,
      "train_step": self.agent.train_step_counter,
    }

  def set_weights(self, weights: Sequence[tf.Variable]) -> None:
    """Takes over the weights of another policy of the same sizes.

    Raises:
      TrainingError: they do not fit.
    """
    mine = self.policy.variables
    shapes = [tuple(w.shape) for w in weights], [tuple(w.shape) for w in mine]
    if shapes[0] != shapes[1]:
      raise TrainingError(
        f"the policy to start from has {len(weights)} weights of other sizes"
        f" than the network's {len(mine)}"
      )
    for weight, value in zip(mine, weights, strict=True):
      weight.assign(value)
    self._average.restart()

  def fingerprint(self) -> dict[str, Any]:
    """A digest of the features."""
    return {"features": self._digest}

  def exportable(self) -> Exportable:
    """The network, its weights averaged, as a function of features."""
    return export.exportable(self._averaged)

  def imitate(self, graph: int) -> float:
    """One gradient step towards the graph's target; returns the loss."""
    target = np.zeros(self._bank.max_decisions, np.int32)
    task = self._tasks[graph]
    target[: len(task.target)] = task.target
    loss = float(self._imitate(tf.constant(graph), tf.constant(target)))
    self._average.step()
    return loss

  def improve(self, graph: int, rng: np.random.Generator) -> Step:
    """One PPO iteration: draw placements of a graph, judge them, update.

    Args:
      graph: number of the graph.
      rng: draws the placements.
    """
    self._environment.select(graph)
    first = self._environment.reset()
    info = self._look(tf.nest.map_structure(tf.convert_to_tensor, first))
    logits = info["dist_params"]["distribution"]["logits"].numpy()[0]
    task = self._tasks[graph]
    count = task.decisions.num_decisions
    samples = self._config.ppo.samples
    actions = np.zeros((samples, self._bank.max_decisions), np.int32)
    mine = logits[:count, : len(task.classes)]
    drawn = sampling.sample(mine, samples, rng, task.clusterings)
    if self._config.ppo.replays_best and task.best is not None:
      drawn[-1] = task.best
    actions[:, :count] = symmetry.likeliest(drawn, mine, task.classes)
    last = self._environment.step(actions)
    self._assign_credit(task, actions[:, :count])
    greedy = logits[:count].argmax(axis=1).astype(np.int32)
    greedy_us = float(task.evaluate(greedy[None])[0])
    experience = _trajectory(first, last, actions, info)
    for _ in range(self._config.ppo.epochs):
      loss = self._train(experience).extra
      if loss.clip_fraction > self._config.ppo.max_clip_fraction:
        break
    self._average.step()
    rewards = np.asarray(last.reward)
    return Step(
      reward=float(rewards.mean()),
      greedy_us=greedy_us,
      sample_us=task.baseline_us * float(np.exp(-np.median(rewards))),
      entropy=mean_entropy(logits[:count]),
      clip_fraction=float(loss.clip_fraction),
      policy_loss=float(loss.policy_gradient_loss),
      value_loss=float(loss.value_estimation_loss),
    )

  def _assign_credit(self, task: Task, choices: np.ndarray) -> None:
    """Tells the agent what each decision of the samples deserves."""
    ppo = self._config.ppo
    if ppo.credit == "shared":
      return
    own = np.zeros((len(choices), self._bank.max_decisions), np.float32)
    found = credit.critical_path_credit(
      task.decisions, task.simulator, choices, ppo.credit_weight
    )
    own[:, : choices.shape[1]] = found.own
    self.agent.share.assign(found.share)
    self.agent.own.assign(own)

  def _distribution(self, time_step: ts.TimeStep) -> dict:
    return self.agent.collect_policy.distribution(time_step).info

  def _imitation_step(self, graph: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    variables = self.policy.trainable_variables
    with tf.GradientTape() as tape:
      inputs = self._bank.get(graph)
      logits = self.policy(inputs, recomputes=self._bank.is_large)
      loss = imitation_loss(
        logits,
        inputs["allowed"],
        target[: tf.shape(logits)[0]],
        self._config.imitation.smoothing,
      )
    gradients = tape.gradient(loss, variables)
    gradients = clipped(gradients, self._config.ppo.max_gradient_norm)
    self.imitation_optimizer.apply_gradients(
      zip(gradients, variables, strict=True)
    )
    return loss


def _trajectory(
  first: ts.TimeStep, last: ts.TimeStep, actions: np.ndarray, info: dict
) -> trajectory.Trajectory:
  """[B, 2]: the episode's one step, then the boundary that PPO masks."""

  def pair(now: object, then: object) -> tf.Tensor:
    return tf.stack([tf.convert_to_tensor(now), tf.convert_to_tensor(then)], 1)

  return trajectory.Trajectory(
    step_type=pair(first.step_type, last.step_type),
    observation=pair(first.observation, last.observation),
    action=pair(actions, actions),
    policy_info=tf.nest.map_structure(lambda x: pair(x, x), info),
    next_step_type=pair(last.step_type, first.step_type),
    reward=pair(last.reward, np.zeros_like(last.reward)),
    discount=pair(last.discount, first.discount),
  )

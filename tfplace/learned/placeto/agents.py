"""Policy updates of Placeto: PPO, or REINFORCE as in the paper."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned.decisions import NEVER
from tfplace.learned.placeto.network import STATE, PlacetoNetwork
from tfplace.learned.train import (
  BatchSquash,
  network,
  tensor_spec,
  tfp,
  trajectory,
)
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.objectives import Choices, clipped, policy_loss
from tfplace.learned.train.ppo import PPO, GraphBank, ValueNetwork

ALGORITHMS = ("ppo", "reinforce")


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Episodes and policy updates.

  Defaults are those of the paper (arXiv 1906.08879) and its code where given.
  PPO is an addition of tfplace.

  Attributes:
    ppo: Settings shared with other strategies; `samples` is the number of
      parallel episodes.
    algorithm: "ppo" or "reinforce".
    memory_penalty: Cost per GB over a device's memory (the paper's code: 2).
    max_cost: Upper bound on the cost, which is 0 at the baseline. The paper
      gives no value; 9 is 8,100 times the baseline step time.
    visits: Number of passes over all groups per episode (Placeto's n; its code:
      1).
    intermediate_rewards: Rewards each step with its decrease of the cost. If
      False, only the last step is rewarded, with the decrease over the episode.
    from_best: Fraction of the episodes that start from the best placement so
      far; the others start from a random one. (The paper's initial placement is
      arbitrary; its code offers both.)
    discount: Discount of later rewards (paper: 1).
    gae_lambda: Lambda of PPO's advantages, chosen by trial; the paper has no
      PPO.
    minibatch: States per gradient step of PPO; bounds memory.
    first_learning_rate, last_learning_rate: Learning rates of REINFORCE's Adam.
    first_entropy, last_entropy: Entropy weights of REINFORCE.
    anneal_iterations: Iterations over which both change linearly from first to
      last. The paper gives no value.
    baseline_rounds: Iterations over which REINFORCE's baseline of a step
      averages its return (the paper's code: 10).
    max_gradient_norm: Gradient norm limit of REINFORCE (the paper's code:
      1.25).
  """

  ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
  algorithm: str = "ppo"
  memory_penalty: float = 2.0
  max_cost: float = 9.0
  visits: int = 1
  intermediate_rewards: bool = True
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
    if self.visits < 1:
      raise TrainingError(
        f"Placeto visits every group at least once, not {self.visits} times"
      )


def observation_spec(
  bank: GraphBank, visits: int
) -> dict[str, tensor_spec.BoundedTensorSpec]:
  """Describes the state of an episode, padded to the largest graph.

  It is bounded because building a network samples it. `step` counts over all
  `visits` and equals their number at the end. `cost` is that of the current
  placement.
  """
  count, devices = bank.max_decisions, bank.max_devices
  bounded = tensor_spec.BoundedTensorSpec
  return {
    "graph": bank.graph_spec(),
    "step": bounded((), tf.int32, 0, visits * count, "step"),
    "placement": bounded((count,), tf.int32, 0, devices - 1, "placement"),
    "start": bounded((count,), tf.float32, 0.0, 1.0, "start"),
    "cost": bounded((), tf.float32, -10.0, 10.0, "cost"),
  }


class PlacetoActor(network.Network):
  """Network from states of one graph to distributions over devices."""

  def __init__(
    self, bank: GraphBank, policy: PlacetoNetwork, visits: int
  ) -> None:
    super().__init__(
      input_tensor_spec=observation_spec(bank, visits), name="actor"
    )
    self._bank = bank
    self._policy = policy
    self._visits = visits

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tfp.distributions.Distribution, Any]:
    """Maps [...] states of one graph to a distribution over [...] devices."""
    outer = observation["step"].shape
    squash = BatchSquash(len(outer))
    names = ("graph", *STATE)
    logits = squash.unflatten(
      self.logits({name: squash.flatten(observation[name]) for name in names})
    )
    logits.set_shape([*outer, self._bank.max_devices])
    choice = tfp.distributions.Categorical(logits=logits, dtype=tf.int32)
    return choice, network_state

  def logits(self, state: dict[str, tf.Tensor]) -> tf.Tensor:
    """Maps [B] padded states of one graph to [B, max_devices] logits."""
    inputs = self._bank.get(state["graph"][0])
    count, devices = tf.unstack(tf.shape(inputs["allowed"]))
    step = state["step"]
    logits = self._policy(
      (
        inputs,
        {
          "placement": state["placement"][:, :count],
          "start": state["start"][:, :count],
          # A finished episode has no current group.
          "step": tf.where(
            step < self._visits * count, step % count, count - 1
          ),
        },
      )
    )
    more = self._bank.max_devices - devices
    return tf.pad(logits, [[0, 0], [0, more]], constant_values=NEVER)


class Losses(NamedTuple):
  """Losses of the last gradient step of an iteration."""

  policy: float
  value: float
  clip_fraction: float


class PPOUpdate(PPO):
  """Updates a policy by PPO after each iteration of episodes.

  An action is one device, so the importance ratio is already per decision.
  Returns and advantages are computed once per iteration
  (`preprocess_sequence`), before minibatches are sampled.
  """

  def __init__(
    self, bank: GraphBank, policy: PlacetoNetwork, config: PlacetoConfig
  ) -> None:
    self._ppo = ppo = config.ppo
    visits = config.visits
    shortest = visits * int(tf.reduce_min(bank.num_decisions))
    steps = (ppo.samples - 1) * shortest
    # All graphs share one minibatch size, because another size would be
    # retraced.
    self._minibatch = max(1, min(config.minibatch, steps))

    def see(observation: dict[str, tf.Tensor]) -> tf.Tensor:
      """Returns progress, cost so far and graph, which predict the return."""
      graph, cost = observation["graph"], observation["cost"]
      steps = visits * tf.gather(bank.num_decisions, graph)
      done = tf.cast(observation["step"], tf.float32)
      done /= tf.cast(steps, tf.float32)
      seen = tf.stack([done, 1.0 - done, cost, cost * (1.0 - done)], axis=-1)
      return tf.concat([seen, tf.one_hot(graph, bank.num_graphs)], axis=-1)

    super().__init__(
      PlacetoActor(bank, policy, visits),
      ValueNetwork(observation_spec(bank, visits), see),
      tensor_spec.BoundedTensorSpec(
        (), tf.int32, 0, bank.max_devices - 1, "device"
      ),
      ppo,
      discount_factor=config.discount,
      lambda_value=config.gae_lambda,
      use_gae=True,
      use_td_lambda_return=True,
      compute_value_and_advantage_in_train=False,
    )

  def update(
    self, episodes: trajectory.Trajectory, rng: np.random.Generator
  ) -> Losses:
    """Trains for a few epochs on [B, N + 1] steps.

    Args:
      episodes: Complete episodes of one graph; the last step is a boundary.
    """
    ready = self.agent.preprocess_sequence(episodes)
    states = tf.nest.map_structure(_flat, ready)
    count = int(states.reward.shape[0])
    for _ in range(self._ppo.epochs):
      order = rng.permutation(count)
      outside = []
      for first in range(0, count - self._minibatch + 1, self._minibatch):
        chosen = order[first : first + self._minibatch]
        loss = self.train(
          tf.nest.map_structure(
            lambda x, rows=chosen: tf.gather(x, rows), states
          )
        ).extra
        outside.append(float(loss.clip_fraction))
      if np.mean(outside) > self._ppo.max_clip_fraction:
        break
    return Losses(
      float(loss.policy_gradient_loss),
      float(loss.value_estimation_loss),
      float(np.mean(outside)),
    )


def _flat(tensor: tf.Tensor) -> tf.Tensor:
  """Reshapes [B, N + 1, ...] to [B * N, 1, ...] without boundaries."""
  inner = tensor[:, :-1]
  return tf.reshape(inner, [-1, 1, *inner.shape[2:]])


class ReinforceUpdate:
  """Updates a policy by REINFORCE after each iteration of episodes.

  Losses are means over states, so that the entropy weight is independent of the
  graph. Gradients are summed over minibatches before one Adam step, because an
  episode of 128 groups does not fit through the network at once.
  """

  def __init__(
    self, bank: GraphBank, policy: PlacetoNetwork, config: PlacetoConfig
  ) -> None:
    self._config = config
    self._policy = policy
    visits = config.visits
    self._actor = PlacetoActor(bank, policy, visits)
    self._actor.create_variables(observation_spec(bank, visits))
    self.optimizer = tf.keras.optimizers.Adam(config.first_learning_rate)
    self.optimizer.build(policy.trainable_variables)
    # Mean returns of the last iterations of each graph, and their number.
    steps = visits * bank.max_decisions
    shape = [bank.num_graphs, config.baseline_rounds, steps]
    self.returns = tf.Variable(tf.zeros(shape), trainable=False)
    rounds = tf.zeros([bank.num_graphs], tf.int32)
    self.rounds = tf.Variable(rounds, trainable=False)
    self._look = tf.function(self._actor.logits, autograph=False)
    self._gradient = tf.function(self._loss_and_gradient, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """Returns the objects to checkpoint besides the policy."""
    return {
      "optimizer": self.optimizer,
      "returns": self.returns,
      "rounds": self.rounds,
    }

  def look(self, time_step: ts.TimeStep) -> dict[str, Any]:
    """Returns [B, max_devices] logits in the format of `PPO.look`."""
    state = tf.nest.map_structure(tf.convert_to_tensor, time_step.observation)
    return {"dist_params": {"logits": self._look(state)}}

  def update(
    self, episodes: trajectory.Trajectory, rng: np.random.Generator
  ) -> Losses:
    """Takes one Adam step on [B, N + 1] steps; the last is a boundary."""
    rewards = episodes.reward.numpy()[:, :-1]
    returns = discounted_returns(rewards, self._config.discount)
    graph = int(episodes.observation["graph"][0, 0])
    baseline = self._baseline(graph, returns.mean(axis=0))
    advantages = (returns - baseline).astype(np.float32).reshape(-1)
    states = {
      name: tf.reshape(x[:, :-1], [-1, *x.shape[2:]])
      for name, x in episodes.observation.items()
    }
    actions = tf.reshape(episodes.action[:, :-1], [-1])
    entropy = tf.constant(self._annealed("entropy"), tf.float32)
    count, loss = len(advantages), 0.0
    total = [tf.zeros_like(v) for v in self._policy.trainable_variables]
    for first in range(0, count, self._config.minibatch):
      rows = slice(first, first + self._config.minibatch)
      part, gradient = self._gradient(
        {name: x[rows] for name, x in states.items()},
        actions[rows],
        tf.constant(advantages[rows]),
        entropy,
        tf.constant(len(advantages[rows]) / count, tf.float32),
      )
      loss += float(part)
      total = [t + g for t, g in zip(total, gradient, strict=True)]
    self.optimizer.learning_rate.assign(self._annealed("learning_rate"))
    self.optimizer.apply_gradients(
      zip(
        clipped(total, self._config.max_gradient_norm),
        self._policy.trainable_variables,
        strict=True,
      )
    )
    return Losses(loss, 0.0, 0.0)

  def _annealed(self, name: str) -> float:
    done = int(self.optimizer.iterations) / self._config.anneal_iterations
    first = getattr(self._config, f"first_{name}")
    last = getattr(self._config, f"last_{name}")
    return first + min(1.0, done) * (last - first)

  def _baseline(self, graph: int, mean: np.ndarray) -> np.ndarray:
    """Returns [N] mean returns over the last rounds, including this one."""
    at = int(self.rounds[graph]) % self._config.baseline_rounds
    row = np.zeros(self.returns.shape[-1], np.float32)
    row[: len(mean)] = mean
    self.returns[graph, at].assign(row)
    self.rounds[graph].assign(self.rounds[graph] + 1)
    known = min(int(self.rounds[graph]), self._config.baseline_rounds)
    return self.returns[graph, :known, : len(mean)].numpy().mean(axis=0)

  def _loss_and_gradient(
    self,
    states: dict[str, tf.Tensor],
    actions: tf.Tensor,
    advantages: tf.Tensor,
    entropy_weight: tf.Tensor,
    share: tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    with tf.GradientTape() as tape:
      logits = self._actor.logits(states)[:, None]
      kind = Choices(logits, actions[:, None], tf.ones_like(logits[..., 0]))
      loss = policy_loss([kind], advantages) - entropy_weight * kind.entropy()
      loss = share * loss
    gradient = tape.gradient(loss, self._policy.trainable_variables)
    return loss, [tf.convert_to_tensor(g) for g in gradient]


def discounted_returns(rewards: np.ndarray, discount: float) -> np.ndarray:
  """Maps [B, N] rewards to [B, N] discounted returns."""
  returns = rewards.astype(np.float64)
  for step in reversed(range(returns.shape[1] - 1)):
    returns[:, step] += discount * returns[:, step + 1]
  return returns

"""Placeto by PPO: graphs by number, actor and value network, and the agent.

A trajectory carries a graph's number; what does not change in an episode is
kept once, in a bank. A batch holds states of one graph.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned.placeto.features import PlacetoFeatures
from tfplace.learned.placeto.network import NEVER, STATE, PlacetoNetwork
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.keras2 import (
  network,
  ppo_clip_agent,
  tensor_spec,
  tfp,
  trajectory,
)
from tfplace.learned.train.keras2 import time_step as ts

ALGORITHMS = ("ppo", "reinforce")


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Episodes, and what is done with them.

  The paper's values where it gives any (arXiv 1906.08879 and its code); PPO is
  tfplace's own choice.

  Attributes:
    ppo: numbers shared with other strategies; `samples` is the number of
      episodes that advance together.
    algorithm: "ppo" or "reinforce".
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

  ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
  algorithm: str = "ppo"
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


_SIZES = {
  "node": "nf",
  "on_device": "nd",
  "slower": "nd",
  "device": "df",
  "feeds": "nn",
  "ancestors": "nn",
  "allowed": "nd",
}


class PlacetoBank(tf.Module):
  """Features of G graphs, padded and stacked.

  Attributes:
    num_graphs: G.
    max_decisions: most groups of any graph.
    max_devices: most devices of any graph.
    num_decisions: [G] int32.
    num_devices: [G] int32.
  """

  def __init__(self, graphs: Sequence[PlacetoFeatures]) -> None:
    super().__init__(name="placeto_bank")
    self.num_graphs = len(graphs)
    self.max_decisions = max(g.num_decisions for g in graphs)
    self.max_devices = max(g.num_devices for g in graphs)
    self.num_decisions = tf.constant([g.num_decisions for g in graphs])
    self.num_devices = tf.constant([g.num_devices for g in graphs])
    self._fields = {
      field: tf.constant(np.stack([self._padded(g, field) for g in graphs]))
      for field in _SIZES
    }

  def _padded(self, graph: PlacetoFeatures, field: str) -> np.ndarray:
    array = getattr(graph, field)
    most = {"n": self.max_decisions, "d": self.max_devices}
    axes = zip(_SIZES[field], array.shape, strict=True)
    return np.pad(array, [(0, most.get(d, n) - n) for d, n in axes])

  @property
  def observation_spec(self) -> dict[str, tensor_spec.BoundedTensorSpec]:
    """Of one episode's state, padded to the largest graph.

    Bounded, since building a network samples it. `step` is the number of
    decisions once all are made; `cost` is that of the placement now.
    """
    count, devices = self.max_decisions, self.max_devices
    bounded = tensor_spec.BoundedTensorSpec
    return {
      "graph": bounded((), tf.int32, 0, self.num_graphs - 1, "graph"),
      "step": bounded((), tf.int32, 0, count, "step"),
      "placement": bounded((count,), tf.int32, 0, devices - 1, "placement"),
      "start": bounded((count,), tf.float32, 0.0, 1.0, "start"),
      "cost": bounded((), tf.float32, -10.0, 10.0, "cost"),
    }

  def get(self, graph: tf.Tensor) -> dict[str, tf.Tensor]:
    """Scalar graph number -> `PlacetoFeatures.tensors()` of that graph."""
    count = {"n": self.num_decisions[graph], "d": self.num_devices[graph]}
    result = {}
    for field, rows in self._fields.items():
      ends = [slice(count.get(d)) for d in _SIZES[field]]
      result[field] = rows[(graph, *ends)]
    return result


class PlacetoActor(network.Network):
  """States of one graph to distributions of the current group's device."""

  def __init__(self, bank: PlacetoBank, policy: PlacetoNetwork) -> None:
    super().__init__(input_tensor_spec=bank.observation_spec, name="actor")
    self._bank = bank
    self._policy = policy

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tfp.distributions.Distribution, Any]:
    """[...] states of one graph -> distribution over [...] devices."""
    outer = tf.shape(observation["step"])
    static = observation["step"].shape
    logits = self.logits(
      {
        name: tf.reshape(
          observation[name],
          tf.concat([[-1], tf.shape(observation[name])[len(static) :]], 0),
        )
        for name in ("graph", *STATE)
      }
    )
    logits = tf.reshape(logits, tf.concat([outer, tf.shape(logits)[1:]], 0))
    logits.set_shape([*static, self._bank.max_devices])
    return (
      tfp.distributions.Categorical(logits=logits, dtype=tf.int32),
      network_state,
    )

  def logits(self, state: dict[str, tf.Tensor]) -> tf.Tensor:
    """[B] states of one graph, padded -> [B, max_devices] logits."""
    inputs = self._bank.get(state["graph"][0])
    count, devices = tf.unstack(tf.shape(inputs["allowed"]))
    logits = self._policy(
      (
        inputs,
        {
          "placement": state["placement"][:, :count],
          "start": state["start"][:, :count],
          # After its last step an episode has no current group.
          "step": tf.minimum(state["step"], count - 1),
        },
      )
    )
    more = self._bank.max_devices - devices
    return tf.pad(logits, [[0, 0], [0, more]], constant_values=NEVER)


class PlacetoValue(network.Network):
  """States to the rewards that are still to come: a small MLP.

  It sees how far the episode is, what the placement costs now, and which graph
  it is: what is to come is mostly what the start cost too much.
  """

  def __init__(self, bank: PlacetoBank, units: int = 32) -> None:
    super().__init__(input_tensor_spec=bank.observation_spec, name="value")
    self._bank = bank
    self._hidden = tf.keras.layers.Dense(units, activation="tanh")
    self._value = tf.keras.layers.Dense(1, kernel_initializer="zeros")

  def call(
    self,
    observation: dict[str, tf.Tensor],
    step_type: tf.Tensor | None = None,
    network_state: Any = (),
    training: bool = False,
  ) -> tuple[tf.Tensor, Any]:
    """[...] states -> [...] expected rewards."""
    graph, cost = observation["graph"], observation["cost"]
    count = tf.gather(self._bank.num_decisions, graph)
    done = tf.cast(observation["step"], tf.float32) / tf.cast(count, tf.float32)
    seen = tf.stack([done, 1.0 - done, cost, cost * (1.0 - done)], axis=-1)
    which = tf.one_hot(graph, self._bank.num_graphs)
    hidden = self._hidden(tf.concat([seen, which], axis=-1))
    return self._value(hidden)[..., 0], network_state


class Losses(NamedTuple):
  """Of the last gradient step of an iteration."""

  policy: float
  value: float
  clip_fraction: float


def make_ppo(
  bank: PlacetoBank,
  policy: PlacetoNetwork,
  config: PlacetoConfig,
) -> ppo_clip_agent.PPOClipAgent:
  """PPO with every choice of tf-agents made here.

  An action is one device, so the ratio of probabilities is that of one
  decision as it is. Returns and advantages are computed once per iteration
  (`preprocess_sequence`), before minibatches are drawn.
  """
  ppo = config.ppo
  return ppo_clip_agent.PPOClipAgent(
    ts.time_step_spec(bank.observation_spec),
    tensor_spec.BoundedTensorSpec(
      (), tf.int32, minimum=0, maximum=bank.max_devices - 1, name="device"
    ),
    optimizer=tf.keras.optimizers.Adam(ppo.learning_rate),
    actor_net=PlacetoActor(bank, policy),
    value_net=PlacetoValue(bank),
    greedy_eval=True,
    importance_ratio_clipping=ppo.clip,
    lambda_value=config.gae_lambda,
    discount_factor=config.discount,
    entropy_regularization=ppo.entropy,
    policy_l2_reg=0.0,
    value_function_l2_reg=0.0,
    shared_vars_l2_reg=0.0,
    value_pred_loss_coef=ppo.value_weight,
    num_epochs=1,  # `train` is called once per minibatch
    use_gae=True,
    use_td_lambda_return=True,
    normalize_rewards=False,  # relative to a baseline of each graph already
    normalize_observations=False,  # devices and numbers of graphs
    log_prob_clipping=0.0,
    gradient_clipping=ppo.max_gradient_norm,
    value_clipping=None,
    compute_value_and_advantage_in_train=False,
    update_normalizers_in_train=False,
    aggregate_losses_across_replicas=False,
    train_step_counter=tf.Variable(0, dtype=tf.int64, name="train_step"),
  )


class PPOUpdate:
  """PPO on the episodes of one iteration after the other."""

  def __init__(
    self,
    bank: PlacetoBank,
    policy: PlacetoNetwork,
    config: PlacetoConfig,
  ) -> None:
    self._ppo = ppo = config.ppo
    steps = (ppo.samples - 1) * int(tf.reduce_min(bank.num_decisions))
    # Of one size for all graphs: another size would be traced anew.
    self._minibatch = max(1, min(config.minibatch, steps))
    self.agent = make_ppo(bank, policy, config)
    self.agent.initialize()
    self.optimizer = self.agent._optimizer  # tf-agents has no accessor
    # Built now, so that a checkpoint finds the slots.
    self.optimizer.build(
      [
        *self.agent.actor_net.trainable_weights,
        *self.agent._value_net.trainable_weights,
      ]
    )
    self._look = tf.function(self._distribution, autograph=False)
    self._train = tf.function(self.agent.train, autograph=False)

  def tracked(self) -> dict[str, Any]:
    """For a checkpoint, besides the policy."""
    return {
      "value": self.agent._value_net,
      "optimizer": self.optimizer,
      "train_step": self.agent.train_step_counter,
    }

  def look(self, time_step: ts.TimeStep) -> dict[str, Any]:
    """What of the policy must be kept for training, `dist_params` with logits
    [B, max_devices] among it."""
    return self._look(tf.nest.map_structure(tf.convert_to_tensor, time_step))

  def _distribution(self, time_step: ts.TimeStep) -> dict[str, Any]:
    return self.agent.collect_policy.distribution(time_step).info

  def update(
    self, episodes: trajectory.Trajectory, rng: np.random.Generator
  ) -> Losses:
    """A few epochs over [B, N + 1] steps, the last of them a boundary.

    Args:
      episodes: whole ones, of one graph.
      rng: draws the minibatches.
    """
    ready = self.agent.preprocess_sequence(episodes)
    states = tf.nest.map_structure(_flat, ready)
    count = int(states.reward.shape[0])
    for _ in range(self._ppo.epochs):
      order = rng.permutation(count)
      outside = []
      for first in range(0, count - self._minibatch + 1, self._minibatch):
        chosen = order[first : first + self._minibatch]
        loss = self._train(
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
  """[B, N + 1, ...] -> [B * N, 1, ...] without the boundaries."""
  inner = tensor[:, :-1]
  return tf.reshape(inner, [-1, 1, *inner.shape[2:]])

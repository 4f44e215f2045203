"""Learner of policies that decide in order: imitation, then PPO."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned import features
from tfplace.learned.decisions import NEVER
from tfplace.learned.ordered.decoding import FEATURES, Head, decode
from tfplace.learned.ordered.neighborhoods import Neighborhoods
from tfplace.learned.ordered.tables import partial_tables
from tfplace.simulate import Simulator
from tfplace.training.config import TrainConfig
from tfplace.training.encoder.agent import (
  DECISION,
  GRAPH,
  GraphBank,
  PlacementActor,
)
from tfplace.training.encoder.learner import EncoderLearner
from tfplace.training.encoder.network import Encoder, EncoderConfig
from tfplace.training.export import as_function
from tfplace.training.libraries import tensor_spec
from tfplace.training.tasks import Task


@dataclasses.dataclass(frozen=True)
class OrderedConfig(EncoderConfig):
  """Sizes of the network; the cost of the decoder grows with them.

  Attributes:
    wide: Width of the first layer of the head.
    narrow: Width of the second layer.
  """

  wide: int = 32
  narrow: int = 16


class OrderedNetwork(Encoder):
  """Graph network with a head shared by all decisions and devices."""

  def __init__(self, config: OrderedConfig) -> None:
    super().__init__(config, "ordered_network")
    dense = tf.keras.layers.Dense
    self._context = dense(config.wide)
    self._slope = dense(FEATURES, kernel_initializer="zeros")
    self._first = self._head("first", (FEATURES, config.wide))
    self._second = self._head("second", (config.wide, config.narrow))
    self._bias = self._head("bias", (config.narrow,), "zeros")
    self._last = self._head("last", (config.narrow, 1))

  def _head(
    self, name: str, shape: tuple[int, ...], start: str = "glorot_uniform"
  ) -> tf.Variable:
    return self.add_weight(name=name, shape=shape, initializer=start)

  def call(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps `Features.tensors()` to [N, wide] contexts, [N, FEATURES] slopes."""
    state, graph = self.encode(inputs)
    devices = tf.reduce_mean(inputs["device"], axis=0, keepdims=True)
    contexts = tf.concat([graph, devices], axis=1)
    contexts = tf.repeat(contexts, tf.shape(state)[0], axis=0)
    joined = tf.concat([state, contexts], axis=1)
    return self._context(joined), self._slope(joined)

  def logits(
    self,
    contexts: Sequence[tf.Tensor],
    observed: tf.Tensor,
    candidates: tf.Tensor,
  ) -> tf.Tensor:
    """Computes [..., D] logits of decisions like `decoding.decode`.

    Args:
      contexts: [..., wide] and [..., FEATURES], from `call`.
      observed: [..., D, FEATURES].
      candidates: [..., D] bool.
    """
    context, slope = contexts
    hidden = tf.tensordot(observed, self._first, 1) + context[..., None, :]
    hidden = tf.tensordot(tf.nn.relu(hidden), self._second, 1) + self._bias
    score = tf.tensordot(tf.nn.relu(hidden), self._last, 1)[..., 0]
    score += tf.reduce_sum(observed * slope[..., None, :], axis=-1)
    return tf.where(candidates, score, NEVER)

  def head(self) -> tuple[tf.Tensor, ...]:
    """Returns the weights of `decoding.Head` after the slope."""
    weights = self._first, self._second, self._bias, self._last[:, 0]
    return tuple(tf.convert_to_tensor(weight) for weight in weights)

  def exported_functions(self) -> dict[str, Any]:
    """Returns `contexts` (features -> contexts, slopes), `head` (weights)."""
    signature = features.signature(self.config.axes)
    return {
      "contexts": as_function(lambda **observed: self(observed), signature),
      "head": as_function(self.head, {}),
    }


# Parts of an observation besides the indices.
OBSERVED, CANDIDATES = "observed", "candidates"
# Changes of one decision that an imitation step learns from.
_SINGLES = 128
# Sets of these changes per task, after which they come again: their simulation
# takes longer than the gradient.
_SAMPLE_SETS = 4
# Log of the speedup that makes such a change e times as likely as keeping the
# decision.
_GAIN = 1e-3
# Fraction of the iterations whose samples change only the decisions of one of
# `Neighborhoods`, as most samples of the placer do. Their rewards differ by
# fewer decisions. It was not tuned.
_NEIGHBORHOODS = 0.75


class OrderedActor(PlacementActor):
  """Computes logits from the features that the decisions observed."""

  def __init__(self, bank: GraphBank, policy: OrderedNetwork) -> None:
    devices = bank.max_devices
    more = {
      OBSERVED: tf.TensorSpec((devices, FEATURES), tf.float32, OBSERVED),
      CANDIDATES: tensor_spec.BoundedTensorSpec(
        (devices,), tf.int32, minimum=0, maximum=1, name=CANDIDATES
      ),
    }
    super().__init__(bank, policy, more)

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    graph = tf.reshape(observation[GRAPH], [-1])[0]
    contexts = [
      tf.gather(context, observation[DECISION])
      for context in self._policy(self._bank.get(graph))
    ]
    candidates = observation[CANDIDATES] > 0
    return self._policy.logits(contexts, observation[OBSERVED], candidates)


class OrderedLearner(EncoderLearner):
  """Learner of a policy that modifies a placement in order.

  Imitation learns from simulated changes of single decisions. The odds of a
  change are those of the best policy with an entropy bonus, exp(log speedup /
  `_GAIN`). PPO then learns changes of several decisions, and uses the best
  placement so far as in SLIM (self-labeling, arXiv 2401.11849).
  """

  network_type: ClassVar[type] = OrderedConfig
  network_class: ClassVar[type] = OrderedNetwork
  actor_class: ClassVar[type] = OrderedActor
  changes: ClassVar[bool] = True

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._tables = [partial_tables(task.decisions) for task in tasks]
    self._neighborhoods = [Neighborhoods(tables) for tables in self._tables]
    self._changes: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}
    self._weights = tf.function(
      lambda graph: (*self.policy(self._bank.get(graph)), *self.policy.head()),
      autograph=False,
    )

  def imitate(self, graph: int) -> float:
    """See `Learner`; the changes depend on the number of completed steps."""
    kept = self._tasks[graph].decisions.base_choices
    step = int(self.imitation_optimizer.iterations)
    number = step // len(self._tasks) % _SAMPLE_SETS
    if (graph, number) not in self._changes:
      self._changes[graph, number] = self._simulated_changes(graph, number)
    zero = np.zeros((1, *self._shape(graph)), np.float32)
    tables = self._tables[graph]
    samples = decode(tables, self._head(graph), zero, kept[None], keeps=True)
    given = samples.observed[0], samples.candidates[0], kept
    changes = self._changes[graph, number]
    loss = self._imitate(
      tf.constant(graph), *map(tf.constant, (*given, *changes))
    )
    self._add_to_average()
    return float(loss)

  def _simulated_changes(
    self, graph: int, number: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples changes: decisions, devices, and wanted probabilities."""
    task = self._tasks[graph]
    rng = np.random.default_rng([self._config.seed, graph, number])
    kept = task.decisions.base_choices
    possible = self._tables[graph].allowed.copy()
    possible[np.arange(len(kept)), kept] = False
    pairs = np.argwhere(possible).astype(np.int32)
    if len(pairs) > _SINGLES:
      pairs = pairs[rng.choice(len(pairs), _SINGLES, replace=False)]
    decision, device = pairs.T
    choices = kept[None].repeat(1 + len(decision), 0)
    choices[np.arange(len(decision)), decision] = device
    # Changes are simulated, whatever rewards are, so that gains are exact. The
    # task does not count them: a resumed run simulates them again.
    simulator = task.evaluator
    if not isinstance(simulator, Simulator):
      simulator = Simulator(task.decisions.problem)
    *step_us, base_us = simulator.step_times(task.decisions.to_devices(choices))
    with np.errstate(divide="ignore"):
      gain = np.log(base_us / np.array(step_us)) / _GAIN
    right = 1.0 / (1.0 + np.exp(-np.clip(gain, -30.0, 30.0)))
    return decision, device, right.astype(np.float32)

  def _imitation_loss(self, graph: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    observed, candidates, kept, decision, device, right = given
    contexts = self.policy(self._bank.get(graph))
    logits = self.policy.logits(contexts, observed, candidates)
    logits = tf.gather(logits, decision)
    kept = tf.gather(kept, decision)
    change = tf.gather(logits, device, batch_dims=1)
    change -= tf.gather(logits, kept, batch_dims=1)
    each = tf.nn.sigmoid_cross_entropy_with_logits(right, change)
    possible = tf.gather(tf.gather(candidates, decision), device, batch_dims=1)
    weight = tf.cast(possible, tf.float32)
    total = tf.maximum(tf.reduce_sum(weight), 1.0)
    return tf.reduce_sum(tf.where(possible, each, 0.0)) / total

  def _sample(
    self, graph: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, dict[str, np.ndarray], tf.Tensor]:
    task, shape = self._tasks[graph], self._shape(graph)
    noise = rng.gumbel(size=(1 + self._config.samples, *shape))
    noise = noise.astype(np.float32)
    noise[0] = 0.0
    kept = task.decisions.base_choices
    free = self._free(graph, rng)
    forced = np.where(free, -1, kept)[None].repeat(len(noise), 0)
    forced = forced.astype(np.int32)
    if task.best is not None:
      forced[-1] = np.where(free, task.best, kept)
    samples = decode(
      self._tables[graph], self._head(graph), noise, forced, keeps=True
    )
    candidates = samples.candidates[1:].astype(np.int32)
    # Fixed decisions get one candidate, so they have no gradient.
    candidates[:, ~free] = kept[~free, None] == np.arange(shape[1])
    more = [0, self._bank.max_devices - shape[1]]
    observation = self._indices(graph) | {
      OBSERVED: np.pad(samples.observed[1:], [[0, 0], [0, 0], more, [0, 0]]),
      CANDIDATES: np.pad(candidates, [[0, 0], [0, 0], more]),
    }
    return samples.choices, observation, self._logits(observation)

  def _free(self, graph: int, rng: np.random.Generator) -> np.ndarray:
    """Samples the [N] bool decisions that an iteration may change."""
    known = self._tasks[graph].decisions.base is not None
    if known and rng.random() < _NEIGHBORHOODS:
      return self._neighborhoods[graph].sample_some(rng)
    return np.ones(self._shape(graph)[0], bool)

  def _head(self, graph: int) -> Head:
    weights = self._weights(tf.constant(graph))
    return Head(*(part.numpy() for part in weights))

  def _shape(self, graph: int) -> tuple[int, ...]:
    return self._tables[graph].allowed.shape

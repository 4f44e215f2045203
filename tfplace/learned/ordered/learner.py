"""Learner of policies that decide in order: imitation, then PPO."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfplace.learned.config import TrainConfig
from tfplace.learned.decisions import NEVER
from tfplace.learned.encoder import features
from tfplace.learned.encoder.agent import GRAPH, GraphBank, PlacementActor
from tfplace.learned.encoder.learner import EncoderLearner
from tfplace.learned.encoder.network import Encoder, EncoderConfig
from tfplace.learned.export import as_function
from tfplace.learned.ordered.decoding import FEATURES, Head, decode
from tfplace.learned.ordered.neighborhoods import Neighborhoods
from tfplace.learned.ordered.tables import partial_tables
from tfplace.learned.policy_format import Exportable
from tfplace.learned.sampling import step_times
from tfplace.learned.train import tensor_spec
from tfplace.learned.train import time_step as ts
from tfplace.learned.train.tasks import Task
from tfplace.simulate import Simulator


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

  def __init__(self, config: OrderedConfig | None = None) -> None:
    config = config or OrderedConfig()
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
    contexts: tuple[tf.Tensor, tf.Tensor],
    observed: tf.Tensor,
    candidates: tf.Tensor,
  ) -> tf.Tensor:
    """Computes [..., N, D] logits like `decoding.decode`.

    Args:
      contexts: Result of `call`.
      observed: [..., N, D, FEATURES].
      candidates: [..., N, D] bool.
    """
    context, slope = contexts
    hidden = tf.tensordot(observed, self._first, 1) + context[:, None]
    hidden = tf.tensordot(tf.nn.relu(hidden), self._second, 1) + self._bias
    score = tf.tensordot(tf.nn.relu(hidden), self._last, 1)[..., 0]
    score += tf.reduce_sum(observed * slope[:, None], axis=-1)
    return tf.where(candidates, score, NEVER)

  def head(self) -> tuple[tf.Tensor, ...]:
    """Returns the weights of `decoding.Head` after the slope."""
    weights = self._first, self._second, self._bias, self._last[:, 0]
    return tuple(tf.convert_to_tensor(weight) for weight in weights)


def exportable(network: OrderedNetwork) -> Exportable:
  """Exports `contexts` (features -> contexts, slopes) and `head` (weights)."""
  signature = features.signature(network.config.axes)
  return Exportable(
    strategy="ordered",
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={
      "contexts": as_function(lambda **observed: network(observed), signature),
      "head": as_function(network.head, {}),
    },
  )


# Parts of an observation besides the graph.
OBSERVED, CANDIDATES = "observed", "candidates"
# Changes of one decision that an imitation step learns from.
_SINGLES = 128
# Draws of these changes per task, after which they come again: their simulation
# takes longer than the gradient.
_DRAWS = 4
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
    super().__init__(bank, observation_spec(bank))
    self._policy = policy

  def logits(self, observation: dict[str, tf.Tensor]) -> tf.Tensor:
    graph = tf.reshape(observation[GRAPH], [-1])[0]
    context, slope = self._policy(self.bank.get(graph))
    more = [[0, self.bank.max_decisions - tf.shape(context)[0]], [0, 0]]
    contexts = tf.pad(context, more), tf.pad(slope, more)
    candidates = observation[CANDIDATES] > 0
    observed = observation[OBSERVED]
    return self._policy.logits(contexts, observed, candidates)


def observation_spec(bank: GraphBank) -> dict[str, Any]:
  """Describes observations: graph index and features of decisions."""
  shape = (bank.max_decisions, bank.max_devices)
  return {
    GRAPH: bank.graph_spec,
    OBSERVED: tf.TensorSpec((*shape, FEATURES), tf.float32, OBSERVED),
    CANDIDATES: tensor_spec.BoundedTensorSpec(
      shape, tf.int32, 0, 1, CANDIDATES
    ),
  }


def observations(
  bank: GraphBank, graph: int, seen: np.ndarray, possible: np.ndarray
) -> dict[str, np.ndarray]:
  """Pads what B samples of a graph observed.

  Args:
    seen: [B, N, D, FEATURES], see `decoding.Samples`.
    possible: [B, N, D] bool devices to choose from.
  """
  number, count, devices, _ = seen.shape
  shape = (number, bank.max_decisions, bank.max_devices)
  observed = np.zeros((*shape, FEATURES), np.float32)
  observed[:, :count, :devices] = seen
  candidates = np.zeros(shape, np.int32)
  candidates[:, :count, :devices] = possible
  candidates[:, count:, 0] = 1
  return {
    GRAPH: np.full(number, graph, np.int32),
    OBSERVED: observed,
    CANDIDATES: candidates,
  }


class OrderedLearner(EncoderLearner):
  """Learner of a policy that modifies a placement in order.

  Imitation learns from simulated changes of single decisions. The odds of a
  change are those of the best policy with an entropy bonus, exp(log speedup /
  `_GAIN`). PPO then learns changes of several decisions, and uses the best
  placement so far as in SLIM (self-labeling, arXiv 2401.11849).
  """

  network_type: ClassVar[type] = OrderedConfig
  network_class: ClassVar[type] = OrderedNetwork
  changes: ClassVar[bool] = True

  def __init__(self, tasks: list[Task], config: TrainConfig) -> None:
    super().__init__(tasks, config)
    self._tables = [partial_tables(task.decisions) for task in tasks]
    self._neighborhoods = [Neighborhoods(tables) for tables in self._tables]
    self._changes: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}
    self._tell = tf.function(
      lambda graph: (*self.policy(self._bank.get(graph)), *self.policy.head()),
      autograph=False,
    )

  def _make_actor(self) -> OrderedActor:
    return OrderedActor(self._bank, self.policy)

  def _export(self, network: OrderedNetwork) -> Exportable:
    return exportable(network)

  def imitate(self, graph: int) -> float:
    """See `Learner`; the changes depend on the number of completed steps."""
    kept = self._tasks[graph].decisions.base_choices
    step = int(self.imitation_optimizer.iterations)
    draw = step // len(self._tasks) % _DRAWS
    if (graph, draw) not in self._changes:
      self._changes[graph, draw] = self._simulated_changes(graph, draw)
    zero = np.zeros((1, *self._shape(graph)), np.float32)
    tables = self._tables[graph]
    samples = decode(tables, self._head(graph), zero, kept[None], True)
    given = samples.observed[0], samples.candidates[0], kept
    changes = self._changes[graph, draw]
    loss = self._imitate(
      tf.constant(graph), *map(tf.constant, (*given, *changes))
    )
    self._add_to_average()
    return float(loss)

  def _simulated_changes(
    self, graph: int, draw: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws changes: decisions, devices, and wanted probabilities."""
    task = self._tasks[graph]
    rng = np.random.default_rng([self._config.seed, graph, draw])
    kept = task.decisions.base_choices
    possible = self._tables[graph].allowed.copy()
    possible[np.arange(len(kept)), kept] = False
    pairs = np.argwhere(possible).astype(np.int32)
    if len(pairs) > _SINGLES:
      pairs = pairs[rng.choice(len(pairs), _SINGLES, replace=False)]
    decision, device = pairs.T
    choices = kept[None].repeat(1 + len(decision), 0)
    choices[np.arange(len(decision)), decision] = device
    *step_us, base_us = self._simulated(task, choices)
    with np.errstate(divide="ignore"):
      gain = np.log(base_us / np.array(step_us)) / _GAIN
    right = 1.0 / (1.0 + np.exp(-np.clip(gain, -30.0, 30.0)))
    return decision, device, right.astype(np.float32)

  def _simulated(self, task: Task, choices: np.ndarray) -> np.ndarray:
    """Simulates [B, N] choices, whatever rewards are: gains are exact.

    The task does not count them: a resumed run simulates them again.
    """
    simulator = task.evaluator
    if not isinstance(simulator, Simulator):
      simulator = Simulator(task.decisions.problem)
    return step_times(simulator, task.decisions.to_devices(choices))

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
  ) -> tuple[np.ndarray, np.ndarray, ts.TimeStep, dict[str, Any]]:
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
    tables = self._tables[graph]
    drawn = decode(tables, self._head(graph), noise, forced, True)
    observed, candidates = drawn.observed[1:], drawn.candidates[1:]
    # Fixed decisions get one candidate, so they have no gradient.
    candidates[:, ~free] = kept[~free, None] == np.arange(shape[1])
    seen = observations(self._bank, graph, observed, candidates)
    return drawn.choices, task.evaluate(drawn.choices), *self._episodes(seen)

  def _free(self, graph: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the [N] bool decisions that samples of an iteration may change."""
    known = self._tasks[graph].decisions.base is not None
    if known and rng.random() < _NEIGHBORHOODS:
      return self._neighborhoods[graph].some(rng)
    return np.ones(self._shape(graph)[0], bool)

  def _head(self, graph: int) -> Head:
    return Head(*(part.numpy() for part in self._tell(tf.constant(graph))))

  def _shape(self, graph: int) -> tuple[int, ...]:
    return self._tables[graph].allowed.shape

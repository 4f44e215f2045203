"""The tf-agents faces of Placeto's network, and the value network.

A trajectory carries a graph's number; what does not change in an episode is
kept once, in `PlacetoBank`. A batch holds states of one graph.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks import network
from tf_agents.specs import tensor_spec

from tfplace.learned.placeto.environment import observation_spec
from tfplace.learned.placeto.features import PlacetoFeatures
from tfplace.learned.placeto.network import NEVER, STATE, PlacetoNetwork

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
    """Of one episode's state."""
    spec = observation_spec(
      self.num_graphs, self.max_decisions, self.max_devices
    )
    return tensor_spec.from_spec(spec)

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

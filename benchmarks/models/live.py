"""The models of `measured/run_live_devices.py`, and splits of them by hand.

Training steps of a fraction of a second on one core: a GPT-like model whole
and in two microbatches, two equal towers, and a convolutional net. Splits by
hand look at names only: one half of the layers, one tower, or one microbatch
for each worker.
"""

import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.models import reference
from tfplace.core import Problem


class InMicrobatches(keras.Model):
  """Trains on two halves of the batch, and adds their gradients up."""

  microbatches = 2

  def train_step(self, data: Any) -> dict[str, tf.Tensor]:
    """One update from the gradients of both halves."""
    x, y = data
    total = None
    for i in range(self.microbatches):
      with tf.name_scope(f"microbatch_{i}"):
        size = tf.shape(y)[0] // self.microbatches
        part = slice(i * size, (i + 1) * size)
        with tf.GradientTape() as tape:
          loss = self.compute_loss(
            y=y[part], y_pred=self(x[part], training=True)
          )
        gradients = tape.gradient(loss, self.trainable_weights)
        gradients = [
          tf.convert_to_tensor(g) / self.microbatches for g in gradients
        ]
      total = (
        gradients
        if total is None
        else [a + b for a, b in zip(total, gradients, strict=True)]
      )
    self.optimizer.apply(total, self.trainable_weights)
    return {"loss": loss}


def gpt(
  kind: type[keras.Model] = keras.Model, layers: int = 4, units: int = 192
) -> keras.Model:
  """A GPT-like decoder: batch 16, 64 tokens of 4,000."""
  length, vocabulary, heads = 64, 4000, 4
  tokens = keras.Input((length,), dtype="int32", name="tokens")
  x = keras.layers.Embedding(vocabulary, units, name="layer0_tokens")(tokens)
  x = reference.Positions(name="layer0_positions")(x)
  for i in range(layers):
    name = f"layer{i}_"
    y = keras.layers.LayerNormalization(name=name + "norm1")(x)
    attention = keras.layers.MultiHeadAttention(
      heads, units // heads, name=name + "attention"
    )
    x = x + attention(y, y, use_causal_mask=True)
    y = keras.layers.LayerNormalization(name=name + "norm2")(x)
    y = keras.layers.Dense(4 * units, activation="gelu", name=name + "up")(y)
    x = x + keras.layers.Dense(units, name=name + "down")(y)
  last = f"layer{layers - 1}_"
  x = keras.layers.LayerNormalization(name=last + "norm")(x)
  logits = keras.layers.Dense(vocabulary, name=last + "logits")(x)
  model = kind(tokens, logits)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
  return model


def towers(depth: int = 4, filters: int = 32) -> keras.Model:
  """Two equal convolutional towers on one input, joined by a small head."""
  inputs = keras.Input((32, 32, 16))
  ends = []
  for tower in range(2):
    x = inputs
    for layer in range(depth):
      x = _conv(filters, f"tower{tower}_layer{layer}")(x)
    pool = keras.layers.GlobalAveragePooling2D(name=f"tower{tower}_pool")
    ends.append(pool(x))
  outputs = keras.layers.Dense(10)(keras.layers.Concatenate()(ends))
  return _classifier(keras.Model(inputs, outputs))


def convolutional() -> keras.Model:
  """Thirteen convolutions, as VGG stacks them, on images of 64 x 64."""
  inputs = x = keras.Input((64, 64, 3))
  layer = 0
  for stage, (count, filters) in enumerate(
    ((2, 16), (2, 32), (3, 64), (3, 128), (3, 128))
  ):
    for _ in range(count):
      x = _conv(filters, f"layer{layer}_conv")(x)
      layer += 1
    x = keras.layers.MaxPooling2D(name=f"layer{layer - 1}_pool{stage}")(x)
  x = keras.layers.Flatten(name="layer12_flat")(x)
  return _classifier(
    keras.Model(inputs, keras.layers.Dense(10, name="layer12_logits")(x))
  )


def _conv(filters: int, name: str) -> keras.layers.Layer:
  return keras.layers.Conv2D(
    filters, 3, padding="same", activation="relu", name=name
  )


def _classifier(model: keras.Model) -> keras.Model:
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
  return model


# Name -> how it is built, batch size, and what names the two halves.
KERAS = {
  "gpt": (gpt, 16, r"layer([0-3])_"),
  "gpt_2_microbatches": (lambda: gpt(InMicrobatches), 16, r"microbatch_([01])"),
  "two_towers": (towers, 16, r"tower([01])_"),
  "convolutional": (convolutional, 16, r"layer(\d+)_"),
}


def by_hand(problem: Problem, mark: str) -> np.ndarray:
  """[num_ops]: the upper half of the marked ops on device 1.

  Variables without a mark are spread by their bytes over both devices. What
  else has none goes with its inputs, where those agree, else with what reads
  it, as the sum of two gradients does with the variable's update.

  Args:
    problem: of two devices or more.
    mark: regular expression; its group is the number of a layer, tower or
      microbatch.
  """
  graph = problem.graph
  found = [re.findall(mark, name) for name in graph.names]
  numbers = np.array([int(n[-1]) if n else -1 for n in found])
  middle = (numbers.max() + 1) // 2
  device = np.where(numbers < 0, -1, numbers >= middle).astype(np.int64)
  group = np.full(problem.num_groups, -1)
  for half in (0, 1):  # both in one group, as of a variable's readers: none
    here = np.bincount(problem.group_of, device == half) > 0
    other = np.bincount(problem.group_of, device == 1 - half) > 0
    group[here & ~other] = half
  held = np.bincount(problem.group_of, graph.persistent_bytes)
  filled = [0.0, 0.0]
  for index in np.argsort(-held):
    if group[index] < 0 and held[index] > 0:
      group[index] = int(filled[1] < filled[0])
      filled[group[index]] += held[index]
  _follow(problem, group)
  return np.maximum(group, 0)[problem.group_of].astype(np.int32)


def _follow(problem: Problem, group: np.ndarray) -> None:
  """Gives groups without a device that of their neighbors, in place."""
  graph, of = problem.graph, problem.group_of
  offsets, edges = graph.in_csr
  for op in graph.topological_order:
    before = group[of[graph.edge_src[edges[offsets[op] : offsets[op + 1]]]]]
    known = set(before.tolist()) - {-1}
    if group[of[op]] < 0 and len(known) == 1:
      group[of[op]] = known.pop()
  offsets, edges = graph.out_csr
  for op in graph.topological_order[::-1]:
    after = group[of[graph.edge_dst[edges[offsets[op] : offsets[op + 1]]]]]
    if group[of[op]] < 0 and (after >= 0).any():
      group[of[op]] = after[after >= 0][0]

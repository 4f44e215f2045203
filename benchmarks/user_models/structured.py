"""Models of tables and of a graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from benchmarks.user_models.registry import Case

_STEPS = 2
_KINDS = {
  f"kind_{i}": [f"{i}_{j}" for j in range(count)]
  for i, count in enumerate((4, 40, 9, 7, 16, 6, 5, 2))
}
_NUMBERS = [f"number_{i}" for i in range(6)]


def wide_and_deep() -> Case:
  """Reads columns of text and of numbers by name."""
  inputs = {
    **{name: keras.Input((1,), name=name) for name in _NUMBERS},
    **{name: keras.Input((1,), name=name, dtype="string") for name in _KINDS},
  }
  wide, deep = [], []
  for name, words in _KINDS.items():
    index = layers.StringLookup(vocabulary=words)(inputs[name])
    count = len(words) + 1
    wide.append(layers.CategoryEncoding(count, output_mode="one_hot")(index))
    embedded = layers.Embedding(count, max(2, int(count**0.5)))(index)
    deep.append(layers.Flatten()(embedded))
  numbers = [inputs[name] for name in _NUMBERS]
  wide_features = layers.BatchNormalization()(layers.concatenate(wide))
  x = layers.concatenate([*deep, *numbers])
  for _ in range(2):
    x = layers.BatchNormalization()(layers.Dense(64)(x))
    x = layers.Dropout(0.1)(layers.ReLU()(x))
  merged = layers.concatenate([wide_features, x])
  outputs = layers.Dense(7, activation="softmax")(merged)
  model = keras.Model(inputs, outputs)
  model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
  )
  rng = np.random.default_rng(0)
  rows = _STEPS * 256
  x = {
    **{name: _numbers(rng, rows) for name in _NUMBERS},
    **{k: rng.choice(words, (rows, 1)) for k, words in _KINDS.items()},
  }
  return Case(model, (x, rng.integers(0, 7, rows).astype("int32")), 256)


def tab_transformer() -> Case:
  """Columns of categories attend to each other."""
  counts = [len(words) for words in _KINDS.values()]
  kinds = keras.Input((len(counts),), name="kinds", dtype="int32")
  numbers = keras.Input((6,), name="numbers")
  columns = [
    layers.Embedding(count, 32)(kinds[:, i]) for i, count in enumerate(counts)
  ]
  x = ops.stack(columns, axis=1)
  x = ColumnPositions()(x)
  for _ in range(3):
    y = layers.MultiHeadAttention(4, 32, dropout=0.2)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, y]))
    y = layers.Dense(32, activation="gelu")(x)
    y = layers.Dense(32)(layers.Dropout(0.2)(y))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, y]))
  x = layers.Flatten()(x)
  x = layers.concatenate([x, layers.LayerNormalization(epsilon=1e-6)(numbers)])
  for units in (256, 128):
    x = layers.Dense(units, activation="selu")(layers.BatchNormalization()(x))
    x = layers.Dropout(0.2)(x)
  outputs = layers.Dense(1, activation="sigmoid")(x)
  model = keras.Model({"kinds": kinds, "numbers": numbers}, outputs)
  model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
    loss=keras.losses.BinaryCrossentropy(),
    metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
  )
  rng = np.random.default_rng(0)
  rows = _STEPS * 256
  chosen = [rng.integers(0, count, rows) for count in counts]
  x = {
    "kinds": np.stack(chosen, axis=1).astype("int32"),
    "numbers": rng.normal(size=(rows, 6)).astype("float32"),
  }
  return Case(model, (x, rng.integers(0, 2, rows).astype("float32")), 256)


class ColumnPositions(layers.Layer):
  """Adds a trained vector to each column: [rows, columns, units]."""

  def build(self, input_shape: Any) -> None:
    self.table = self.add_weight(shape=input_shape[1:], name="table")

  def call(self, x: Any) -> Any:
    return x + self.table


def dlrm() -> Case:
  """Predicts clicks by products of embeddings."""
  model = Dlrm([1000 + 40 * i for i in range(26)], units=16)
  model.compile(
    optimizer=keras.optimizers.Adagrad(0.01),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
  )
  rng = np.random.default_rng(0)
  rows = _STEPS * 512
  x = {
    "dense": rng.normal(size=(rows, 13)).astype("float32"),
    "sparse": rng.integers(0, 1000, (rows, 26)).astype("int32"),
  }
  return Case(model, (x, rng.integers(0, 2, (rows, 1)).astype("float32")), 512)


class Dlrm(keras.Model):
  """Bottom network, embeddings, their products, top network."""

  def __init__(self, counts: list[int], units: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.counts, self.units = counts, units
    self.tables = [
      layers.Embedding(count, units, name=f"table_{i}")
      for i, count in enumerate(counts)
    ]
    self.bottom = keras.Sequential(
      [layers.Dense(n, activation="relu") for n in (128, 64, units)]
    )
    self.top = keras.Sequential(
      [
        *(layers.Dense(n, activation="relu") for n in (256, 128)),
        layers.Dense(1),
      ]
    )

  def call(self, inputs: Any) -> Any:
    dense = self.bottom(inputs["dense"])
    rows = [
      table(inputs["sparse"][:, i]) for i, table in enumerate(self.tables)
    ]
    vectors = ops.stack([dense, *rows], axis=1)
    products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
    count = len(rows) + 1
    first, second = np.triu_indices(count, 1)
    flat = ops.reshape(products, (-1, count * count))
    pairs = ops.take(flat, first * count + second, axis=1)
    return self.top(ops.concatenate([dense, pairs], axis=1))

  def get_config(self) -> dict[str, Any]:
    sizes = {"counts": self.counts, "units": self.units}
    return {**super().get_config(), **sizes}


def graph_convolution() -> Case:
  """Classifies nodes of one graph, which the model holds."""
  rng = np.random.default_rng(0)
  features = rng.random((1000, 300), np.float32)
  edges = rng.integers(0, 1000, (2, 5000)).astype("int32")
  model = NodeClassifier(features, edges, num_classes=7, units=(32, 32))
  model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
  )
  nodes = rng.integers(0, 1000, _STEPS * 256).astype("int32")
  labels = rng.integers(0, 7, _STEPS * 256).astype("int32")
  return Case(model, (nodes, labels), 256)


class GraphConvolution(layers.Layer):
  """Adds what neighbors say to each node: [nodes, units]."""

  def __init__(self, units: tuple[int, ...], **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.prepare = _feed_forward(units)
    self.update = _feed_forward(units)

  def call(self, inputs: Any) -> Any:
    nodes, edges, weights = inputs
    sources, targets = edges[0], edges[1]
    messages = self.prepare(tf.gather(nodes, targets))
    messages *= tf.expand_dims(weights, -1)
    gathered = tf.math.unsorted_segment_mean(
      messages, sources, num_segments=tf.shape(nodes)[0]
    )
    return tf.nn.l2_normalize(self.update(nodes + gathered), axis=-1)


class NodeClassifier(keras.Model):
  """Takes indices of nodes, and returns logits: [indices, classes]."""

  def __init__(
    self,
    features: np.ndarray,
    edges: np.ndarray,
    num_classes: int,
    units: tuple[int, ...],
  ) -> None:
    super().__init__()
    self.node_features = tf.constant(features)
    self.edges = tf.constant(edges)
    weights = np.ones(edges.shape[1], "float32")
    self.edge_weights = tf.constant(weights / weights.sum())
    self.preprocess = _feed_forward(units)
    self.first = GraphConvolution(units)
    self.second = GraphConvolution(units)
    self.postprocess = _feed_forward(units)
    self.logits = layers.Dense(num_classes)

  def call(self, indices: Any) -> Any:
    x = self.preprocess(self.node_features)
    x = self.first((x, self.edges, self.edge_weights)) + x
    x = self.second((x, self.edges, self.edge_weights)) + x
    x = self.postprocess(x)
    return self.logits(tf.gather(x, indices))


def _feed_forward(units: tuple[int, ...]) -> keras.Sequential:
  parts: list[Any] = []
  for count in units:
    parts += [
      layers.BatchNormalization(),
      layers.Dropout(0.2),
      layers.Dense(count, activation=keras.activations.gelu),
    ]
  return keras.Sequential(parts)


def _numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
  return rng.normal(size=(rows, 1)).astype("float32")

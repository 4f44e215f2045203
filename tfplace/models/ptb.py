"""Random recurrent cells of ENAS, unrolled: the `ptb` family of Placeto.

A member samples a cell from the recurrent search space of Pham et al. (arXiv
1802.03268). Node 0 reads the word and the state. Each other node reads one
random earlier node through a highway gate and one of four activations. The new
state is the mean of the nodes that no other node reads. Op names contain the
step and the node, as in
`ptb/language_model/step_7/recurrent_layer_0/node_3/MatMul`.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfplace.models.families import generator
from tfplace.models.lstm import (
  Sampler,
  add_softmax,
  language_model,
  word_scorer,
)

ACTIVATIONS = ("tanh", "relu", "identity", "sigmoid")
_LAYER = "recurrent_layer_0"


class Node(NamedTuple):
  """Node of a recurrent cell.

  Attributes:
    before: Earlier node that this node reads. -1 stands for the word and the
      old state.
    activation: One of `ACTIVATIONS`.
  """

  before: int
  activation: str


def draw_nodes(index: int, nodes: int) -> tuple[Node, ...]:
  """Samples the cell of a member.

  Raises:
    ExtractionError: There is no such member.
  """
  rng = generator("ptb", index)
  return tuple(
    Node(
      int(rng.integers(i)) if i else -1,
      ACTIVATIONS[rng.integers(len(ACTIVATIONS))],
    )
    for i in range(nodes)
  )


@keras.saving.register_keras_serializable("tfplace")
class RecurrentCell(keras.layers.Layer):
  """Scores sentences word by word with a recurrent cell.

  Args:
    nodes: Nodes of the cell, each `(before, activation)`.
    units: Units per node, and embedding size.
    vocabulary: Number of words.
  """

  def __init__(
    self,
    nodes: tuple[tuple[int, str], ...],
    units: int,
    vocabulary: int,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    self.nodes = [Node(*node) for node in nodes]
    self.units, self.vocabulary = units, vocabulary
    self.embedding = keras.layers.Embedding(vocabulary, units, name="embedding")

  def build(self, *unused_shapes: Any, **unused: Any) -> None:
    """Creates all weights."""
    self.embedding.build((None, None))
    self.kernels = [
      self.add_weight(
        ((2 if node.before < 0 else 1) * self.units, 2 * self.units),
        name=f"kernel_{i}",
      )
      for i, node in enumerate(self.nodes)
    ]
    self.softmax = add_softmax(self, self.units, self.vocabulary)

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments that rebuild the layer."""
    sizes = {"units": self.units, "vocabulary": self.vocabulary}
    return {**super().get_config(), **sizes, "nodes": self.nodes}

  def call(self, words: tf.Tensor) -> tf.Tensor:
    """Maps int32 words [batch, length + 1] to log-probabilities.

    The result, float32 [batch, length], scores each word but the first given
    the words before it.
    """
    following = tf.unstack(words, axis=1)[1:]
    inputs = tf.unstack(self.embedding(words[:, :-1]), axis=1)
    with tf.name_scope(_LAYER):
      kernels = [tf.convert_to_tensor(kernel) for kernel in self.kernels]
      state = tf.zeros((tf.shape(words)[0], self.units))
    score = word_scorer(self.softmax)
    scores = []
    for step, embedded in enumerate(inputs):
      with tf.name_scope(f"step_{step}"):
        with tf.name_scope(_LAYER):
          state = self._step(embedded, state, kernels)
        scores.append(score(state, following[step]))
    return tf.stack(scores, axis=1)

  def _step(
    self, word: tf.Tensor, state: tf.Tensor, kernels: list[tf.Tensor]
  ) -> tf.Tensor:
    states: list[tf.Tensor] = []
    for i, (node, kernel) in enumerate(zip(self.nodes, kernels, strict=True)):
      with tf.name_scope(f"node_{i}"):
        first = node.before < 0
        before = state if first else states[node.before]
        seen = tf.concat([word, before], axis=1) if first else before
        value, gate = tf.split(tf.matmul(seen, kernel), 2, axis=1)
        if node.activation != "identity":
          value = getattr(tf.nn, node.activation)(value)
        states.append(before + tf.sigmoid(gate) * (value - before))
    seen_nodes = {node.before for node in self.nodes}
    loose = [s for i, s in enumerate(states) if i not in seen_nodes]
    return tf.add_n(loose) / len(loose)


def ptb(
  index: int = 0,
  batch_size: int = 20,
  nodes: int = 12,
  units: int = 720,
  vocabulary: int = 10000,
  length: int = 8,
) -> tuple[keras.Model, Sampler]:
  """Builds member `index` of the family.

  12 nodes, 720 units, batch size 20 and SGD with learning rate 0.25 on the
  10,000 words of Penn Treebank are those of the public ENAS search. Length 8
  instead of 35 keeps the graph at a moderate size. Not implemented: weights
  shared by embedding and softmax, dropout, gradient clipping.

  Args:
    index: Member, 0 to 31.
    batch_size: Sentences per step.
    nodes: Number of nodes of the cell.
    units: Units per node.
    vocabulary: Number of words.
    length: Predicted words per sentence.
  """
  cell = draw_nodes(index, nodes)
  scorer = RecurrentCell(cell, units, vocabulary, name="language_model")
  optimizer = keras.optimizers.SGD(0.25)
  return language_model(
    "ptb", scorer, optimizer, batch_size, length, vocabulary
  )

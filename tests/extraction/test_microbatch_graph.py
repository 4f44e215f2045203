"""Graphs of microbatched steps: reads, order, memory."""

import collections

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfplace
from tests.testing.microbatched import compiled
from tfplace.graph.microbatches import (
  BATCH_SCOPE,
  WHOLE,
  VariantConfig,
  microbatch_of,
)
from tfplace.variants.keras_step import trace_keras

BATCH = 8
ROWS, WIDTH = 5000, 8  # of the table of embeddings
CLUSTER = tfplace.cluster_preset("v100x2")


def tokens():
  sequence = keras.Input((6,), dtype="int32")
  x = layers.Embedding(ROWS, WIDTH, name="table")(sequence)
  x = layers.Conv1D(8, 3, use_bias=False, name="conv")(x)
  x = layers.BatchNormalization(name="norm")(x)
  x = layers.SimpleRNN(5, name="rnn")(x)
  x = layers.Dense(6, "relu", kernel_regularizer="l2", name="dense")(x)
  model = keras.Model(sequence, layers.Dense(3, name="last")(x), name="net")
  optimizer = keras.optimizers.AdamW(weight_decay=0.1)
  return compiled(model, optimizer=optimizer, metrics=["mae"])


@pytest.fixture(scope="module")
def graph_of():
  known = {}

  def graph(*numbers):
    if numbers not in known:
      config = VariantConfig(*numbers, allow_batch_statistics=True)
      traced = trace_keras(tokens(), BATCH, microbatches=config)
      known[numbers] = traced.graph_def
    return known[numbers]

  return graph


def source(text):
  return text.removeprefix("^").partition(":")[0]


def test_each_variable_is_read_once_for_all_microbatches(graph_of):
  nodes = {node.name: node for node in graph_of(4, None).node}
  readers = collections.defaultdict(set)  # of a read: microbatches
  for name, node in nodes.items():
    for text in node.input:
      read = nodes[source(text)]
      if read.op == "ReadVariableOp" and microbatch_of(name) is not None:
        readers[read.name].add(microbatch_of(name))
  reads = collections.Counter(nodes[read].input[0] for read in readers)
  metrics = {"mean_absolute_error/total", "mean_absolute_error/count"}
  weights = {v.path for v in tokens().weights}  # the loops', too
  assert set(reads) - metrics == weights  # moving statistics, too
  assert all(reads[weight] == 1 for weight in weights)
  shared = [r for r in readers if nodes[r].input[0] in weights]
  assert all(readers[read] == {0, 1, 2, 3} for read in shared)
  assert all(microbatch_of(read) is None for read in shared)


def test_loops_of_microbatches_may_be_on_different_devices():
  graph = tfplace.extract(
    tokens(), batch_size=BATCH, microbatches=2, allow_batch_statistics=True
  )
  groups = collections.defaultdict(set)
  for i, op_type in enumerate(graph.types):
    if op_type.endswith("While"):
      groups[int(graph.microbatch[i])].add(int(graph.colocation[i]))
  assert len(groups) == 2 and not groups[0] & groups[1]
  handles = {
    int(graph.colocation[i])
    for i in range(graph.num_ops)
    if graph.types[i] == "VarHandleOp"
  }
  assert not handles & (groups[0] | groups[1])


def descendants(edges, start):
  found, waiting = set(), [start]
  while waiting:
    for name in edges[waiting.pop()]:
      if name not in found:
        found.add(name)
        waiting.append(name)
  return found


@pytest.mark.parametrize("in_flight", [1, 2, None])
def test_in_flight_are_no_more_than_that(graph_of, in_flight):
  graph_def = graph_of(4, in_flight)
  edges = collections.defaultdict(list)
  for node in graph_def.node:
    for text in node.input:
      edges[source(text)].append(node.name)
  ends, heavy = collections.defaultdict(set), collections.defaultdict(set)
  for node in graph_def.node:
    index = microbatch_of(node.name)
    if index is None or BATCH_SCOPE in node.name:
      continue
    if any(name.startswith("accumulate/") for name in edges[node.name]):
      ends[index].add(node.name)  # with the gradient of a weight
    if node.op in ("MatMul", "Conv2D", "While", "GatherV2"):
      heavy[index].add(node.name)
  assert len(ends) == len(heavy) == 4 and min(map(len, ends.values())) > 8
  assert len(heavy[0]) == len(heavy[3]) > 5
  for index, end in ((i, end) for i in ends for end in ends[i]):
    after = descendants(edges, end)
    # Ops that are held back all begin after it; the others never wait.
    held = {i for i in range(4) if heavy[i] <= after}
    waiting = {i for i in range(4) if heavy[i] & after} - {index}
    step = in_flight or 4
    assert held == waiting == set(range(index + step, 4, step))


def test_one_microbatch_is_the_step_as_it_was_op_for_op(graph_of):
  plain = trace_keras(tokens(), BATCH, microbatches=WHOLE).graph_def
  one = graph_of(1, 1)
  assert [n.op for n in one.node] == [n.op for n in plain.node]
  assert not any(microbatch_of(node.name) for node in one.node)


def test_sparse_gradients_stay_sparse():
  graph = tfplace.extract(
    tokens(), CLUSTER, batch_size=BATCH, microbatches=4,
    allow_batch_statistics=True, compile="none",
  )  # fmt: skip
  table = ROWS * WIDTH * 4
  op_of = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_offsets))
  large = op_of[graph.output_bytes == table]
  names = [graph.names[op] for op in large if graph.microbatch[op] >= 0]
  assert (
    names == []
  )  # the table is read, once, for all; nothing else is as large
  joined = graph.index["accumulate_on_2/table/embeddings/concat"]
  rows = graph.output_bytes[graph.output_offsets[joined]]
  assert rows == BATCH * 6 * WIDTH * 4  # of the tokens of all examples


class Block(layers.Layer):
  """A residual layer of two products."""

  def build(self, shape):
    self.wide = self.add_weight(shape=(shape[-1], 64), name="wide")
    self.narrow = self.add_weight(shape=(64, shape[-1]), name="narrow")

  def call(self, x):
    return x + ops.matmul(ops.tanh(ops.matmul(x, self.wide)), self.narrow)


def blocks():
  x = image = keras.Input((32, 8))
  for i in range(4):
    x = Block(name=f"block_{i}")(x)
  model = keras.Model(image, layers.Dense(1, name="last")(x), name="net")
  return compiled(model, optimizer=keras.optimizers.SGD(0.01))


def simulated(model, batch_size=64, **options):
  """The graph of its step, and the evaluation on one device."""
  options = {"batch_size": batch_size, "compile": "none", **options}
  graph = tfplace.extract(model, CLUSTER, **options)
  problem = tfplace.Problem(graph, CLUSTER)
  devices = np.zeros((1, graph.num_ops), int)
  return graph, tfplace.Simulator(problem).evaluate(devices)[0]


def peak_bytes(evaluation):
  return max(evaluation.peak_memory_bytes.values())


def test_one_microbatch_in_flight_needs_a_share_of_the_memory():
  # Activations are all but the weights and a batch that is cut.
  _, whole = simulated(blocks())
  graph, one = simulated(blocks(), microbatches=4, max_in_flight=1)
  _, two = simulated(blocks(), microbatches=4, max_in_flight=2)
  _, free = simulated(blocks(), microbatches=4)
  always = graph.persistent_bytes.sum()
  batch = 2 * 64 * 32 * 8 * 4  # read, and in parts
  activations = peak_bytes(whole) - always
  share = activations / 4
  assert always + share <= peak_bytes(one) < always + batch + 1.1 * share
  assert peak_bytes(one) < peak_bytes(two) < peak_bytes(free)
  assert peak_bytes(free) > 2.5 * peak_bytes(one)
  memory = (peak_bytes(one) + peak_bytes(two)) / 2
  fits = [peak_bytes(e) <= memory for e in (whole, one, two, free)]
  assert fits == [False, True, False, False]

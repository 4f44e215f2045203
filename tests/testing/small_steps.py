"""Small real steps for the tests of measurement."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfplace.extraction.structure import skeleton
from tfplace.extraction.traced import FeedSpec, TracedStep, VariableSpec
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph

WIDTH = 16


@dataclasses.dataclass(frozen=True)
class Step:
  """A traced step, and its graph with made-up costs."""

  traced: TracedStep
  graph: OpGraph

  def on(self, device_of: dict[str, int]) -> np.ndarray:
    """[1, num_ops]: ops on device 0 but for the names given."""
    row = np.zeros(self.graph.num_ops, np.int32)
    for name, device in device_of.items():
      row[self.graph.index[name]] = device
    return row[None]


def as_graph(traced: TracedStep) -> OpGraph:
  bare = skeleton(traced)
  ops = [
    OpSpec(name, kind, {"CPU": 1.0}, [4.0] * outputs, colocation=group)
    for name, kind, outputs, group in zip(
      bare.names, bare.types, bare.num_outputs, bare.colocation, strict=True
    )
  ]
  return build_graph(traced.name, ops, bare.edges)


def trained_step() -> Step:
  """loss = mean((x w)^2); w -= 0.1 gradient. Names: x, w, read, y, loss..."""
  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, (8, WIDTH), name="x")
    w = tf.raw_ops.VarHandleOp(
      dtype=tf.float32, shape=(WIDTH, WIDTH), shared_name="w", name="w"
    )
    read = tf.raw_ops.ReadVariableOp(resource=w, dtype=tf.float32, name="read")
    read.set_shape((WIDTH, WIDTH))
    y = tf.matmul(x, read, name="y")
    loss = tf.reduce_mean(tf.square(y, name="square"), name="loss")
    grad = tf.matmul(x, y, transpose_a=True, name="grad")
    delta = tf.multiply(grad, 0.1 * 2 / (8 * WIDTH), name="delta")
    with tf.control_dependencies([read]):
      tf.raw_ops.AssignSubVariableOp(resource=w, value=delta, name="update")
  rng = np.random.default_rng(0)
  traced = TracedStep(
    name="trained",
    graph_def=graph.as_graph_def(),
    feeds={
      "x": FeedSpec(
        "x:0",
        (8, WIDTH),
        tf.float32,
        rng.standard_normal((8, WIDTH)).astype(np.float32),
      )
    },
    fetches=(loss.name,),
    targets=("update",),
    variables={
      "w": VariableSpec(
        "w",
        (WIDTH, WIDTH),
        tf.float32,
        rng.standard_normal((WIDTH, WIDTH)).astype(np.float32),
      )
    },
    training=True,
  )
  return Step(traced, as_graph(traced))


def nan_step() -> Step:
  """Divides zero by zero."""
  graph = tf.Graph()
  with graph.as_default():
    zero = tf.constant(0.0, name="zero")
    out = tf.math.divide(zero, zero, name="out")
  graph_def = graph.as_graph_def()
  traced = TracedStep("nan", graph_def, {}, (out.name,), (), {}, False)
  return Step(traced, as_graph(traced))


def faulty_step() -> Step:
  """Goes wrong by where its ops run: a real fault of a real placement.

  An op "on_<fault>" reads which process it runs in; away from that of "home",
  the step fills 400 TB ("memory"), or waits for an element that never comes
  ("hang"). On one device it computes 2.0.
  """
  graph = tf.Graph()
  with graph.as_default():
    home = _process("home")
    away = {
      fault: tf.not_equal(home, _process(f"on_{fault}"), name=f"{fault}_away")
      for fault in ("memory", "hang")
    }
    count = tf.where(
      away["memory"], tf.constant(10**14, tf.int64), 1, name="count"
    )
    big = tf.fill(tf.reshape(count, [1]), 2.0, name="big")
    queue = tf.raw_ops.FIFOQueueV2(
      component_types=[tf.float32], shapes=[[]], name="queue"
    )
    wanted = tf.cast(away["hang"], tf.int32, name="wanted")
    (none,) = tf.raw_ops.QueueDequeueManyV2(
      handle=queue, n=wanted, component_types=[tf.float32], name="waits"
    )
    waited = tf.cast(tf.size(none), tf.float32)
    out = tf.add(tf.reduce_min(big), waited, name="out")
  traced = TracedStep(
    "faulty", graph.as_graph_def(), {}, (out.name,), (), {}, False
  )
  return Step(traced, as_graph(traced))


def _process(name: str) -> tf.Tensor:
  """The id of the process that the op of this name runs in."""
  stat = tf.raw_ops.ReadFile(filename=tf.constant("/proc/self/stat"), name=name)
  return tf.strings.regex_replace(stat, " [^\n]*\n?", "")

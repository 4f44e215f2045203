"""Small models, batches, and proof of where ops ran, for the tests here."""

import contextlib
import dataclasses
import functools
import re

import keras
import numpy as np
from keras import layers
from tensorflow.python.eager import context

from tests.testing import clusters
from tests.testing.small_steps import as_graph
from tfplace.graph import Device, Placement, Problem
from tfplace.plan.local_devices import local_cluster
from tfplace.variants.keras_step import trace_keras

LOCAL = "/job:localhost/replica:0/task:0/device:"
STEPS = 3
BATCH = 8
EXAMPLES = 22  # of which the third batch has 6


def dense(name):
  return keras.Sequential(
    [
      keras.Input((6,)),
      layers.Dense(16, activation="relu", name="first"),
      layers.Dense(16, activation="tanh", name="second"),
      layers.Dense(3, name="last"),
    ],
    name=name,
  )


def conv_norm(name):
  return keras.Sequential(
    [
      keras.Input((8, 8, 3)),
      layers.Conv2D(4, 3, name="first"),
      layers.BatchNormalization(name="second"),
      layers.ReLU(),
      layers.Flatten(),
      layers.Dense(3, name="last"),
    ],
    name=name,
  )


def dropout(name):
  return keras.Sequential(
    [
      keras.Input((6,)),
      layers.Dense(16, name="first"),
      layers.Dropout(0.4, name="second"),
      layers.Dense(3, name="last"),
    ],
    name=name,
  )


def lstm(name):
  return keras.Sequential(
    [
      keras.Input((5, 4)),
      layers.LSTM(7, return_sequences=True, name="first"),
      layers.LSTM(6, dropout=0.2, name="second"),
      layers.Dense(3, name="last"),
    ],
    name=name,
  )


def two_inputs(name):
  left = keras.Input((6,), name="left")
  right = keras.Input((4,), name="right")
  a = layers.Dense(8, activation="relu", name="first")(left)
  b = layers.Dense(8, activation="relu", name="second")(right)
  joined = layers.Concatenate(name="joined")([a, b])
  out = layers.Dense(3, name="last")(joined)
  return keras.Model([left, right], out, name=name)


@keras.saving.register_keras_serializable("apply_testing")
class Subclassed(keras.Model):
  def __init__(self, name=None, **kwargs):
    super().__init__(name=name, **kwargs)
    self.first = layers.Dense(8, activation="relu", name="first")
    self.second = layers.Dropout(0.3, name="second")
    self.last = layers.Dense(3, name="last")

  def call(self, x, training=False):
    return self.last(self.second(self.first(x), training=training))


def linked(count=3, bandwidth=1e6, memory_bytes=float("inf"), latency_us=0.0):
  """The first CPU devices of this process, each linked with each other."""
  names = [f"{LOCAL}CPU:{i}" for i in range(count)]
  devices = [Device(name, "CPU", memory_bytes) for name in names]
  return clusters.linked(devices, bandwidth, latency_us)


def sgd():
  return keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
  return keras.optimizers.Adam(0.01)


MODELS = {
  "dense": (dense, sgd),
  "conv_norm": (conv_norm, adam),
  "dropout": (dropout, adam),
  "lstm": (lstm, adam),
  "two_inputs": (two_inputs, sgd),
  "subclassed": (Subclassed, adam),
}
SPLIT = {"first": "CPU:1", "second": "CPU:2", "last": "CPU:1"}


def build(kind, compiled=True, **options):
  """The model of that kind, the same weights every time."""
  keras.utils.set_random_seed(7)
  function, optimizer = MODELS[kind]
  model = function("net")
  if compiled:
    options = {"loss": "mse", "metrics": ["mae"], **options}
    model.compile(optimizer(), jit_compile=False, **options)
  return model


def batch(kind):
  rng = np.random.default_rng(3)
  y = rng.normal(size=(BATCH, 3)).astype("float32")
  if kind == "two_inputs":
    x = [rng.normal(size=(BATCH, n)).astype("float32") for n in (6, 4)]
    return x, y
  shape = {"conv_norm": (8, 8, 3), "lstm": (5, 4)}.get(kind, (6,))
  return rng.normal(size=(BATCH, *shape)).astype("float32"), y


def losses(model, kind, steps=STEPS):
  x, y = batch(kind)
  return np.array([model.train_on_batch(x, y)[0] for _ in range(steps)])


@functools.cache
def unplaced(kind):
  """`losses` of the model of that kind, on which nothing is placed."""
  return losses(build(kind), kind)


@dataclasses.dataclass(frozen=True)
class Ran:
  """A node of a partition graph: what the runtime executed, and where."""

  name: str
  type: str
  device: str
  controls: tuple[str, ...] = ()  # ops that it waits for, but for their data


@contextlib.contextmanager
def recorded(at_least=20):
  """Yields a list that is filled at exit with every node that could run.

  Graphs of fewer nodes are left out: ops of an input pipeline or run eagerly.
  From the partition graphs of the step functions that first run inside: the
  graphs as they are executed, after TensorFlow's placer and Grappler.
  """
  ran = []
  context.context().enable_run_metadata()
  context.context().export_run_metadata()  # of before: it goes on for ever
  try:
    yield ran
    metadata = context.context().export_run_metadata()
  finally:
    context.context().disable_run_metadata()
  for function in metadata.function_graphs:
    nodes = [node for graph in function.partition_graphs for node in graph.node]
    if len(nodes) < at_least:
      continue
    for node in nodes:
      # Transfers are named after the op whose output they carry.
      if node.op not in ("_Send", "_Recv", "_HostSend", "_HostRecv"):
        name = re.sub(r"^(StatefulPartitionedCall|Func)/", "", node.name)
        device = node.device.removeprefix(LOCAL)
        controls = tuple(
          re.sub(r"^\^((StatefulPartitionedCall|Func)/)?", "", text)
          for text in node.input
          if text.startswith("^")
        )
        ran.append(Ran(name, node.op, device, controls))


def devices_of(ran, layer, op="MatMul"):
  """Devices of the ops of a layer, forward and backward, named like `op`."""
  pattern = re.compile(rf"(^|/){layer}(_\d+)?/.*{op}")
  return {node.device for node in ran if pattern.search(node.name)}


def unit_placement(model, kind, seed=0):
  """A random allowed placement of the training step on all CPU devices.

  Returns:
    The traced step and the placement.
  """
  traced = trace_keras(model, sample=batch(kind))
  return traced, random_placement(traced, seed)


def random_placement(traced, seed=0):
  """A random allowed placement of any step on all CPU devices."""
  problem = Problem(as_graph(traced), local_cluster())
  rng = np.random.default_rng(seed)
  devices = rng.integers(0, problem.cluster.num_devices, problem.num_groups)
  return Placement(problem, devices[problem.group_of])


def planned_ops(ran, placement):
  """(ran, planned device) of each node that the placement names.

  What Grappler fused has another type; outputs of a step are Identity.
  """
  graph = placement.problem.graph
  types = dict(zip(graph.names, graph.types, strict=True))
  assignments = placement.assignments
  return [
    (node, assignments[node.name].removeprefix(LOCAL))
    for node in ran
    if types.get(node.name) == node.type
    and node.type not in ("Identity", "NoOp")
  ]


def handles(placement):
  """Names of the variables of what is placed."""
  graph = placement.problem.graph
  pairs = zip(graph.names, graph.types, strict=True)
  return [name for name, kind in pairs if kind == "VarHandleOp"]


def masked_recurrent():
  return keras.Sequential(
    [
      keras.Input((7,), dtype="int32"),
      layers.Embedding(11, 5, mask_zero=True, name="first"),
      layers.SimpleRNN(6, return_sequences=True, name="second"),
      layers.Dense(3, name="last"),
    ],
    name="net",
  )


def convolutional():
  return keras.Sequential(
    [
      keras.Input((6, 6, 2)),
      layers.Conv2D(64, 3, padding="same", activation="relu", name="first"),
      layers.Conv2D(64, 3, padding="same", activation="relu", name="second"),
      layers.Flatten(),
      layers.Dense(3, name="last"),
    ],
    name="net",
  )


# Models whose fits of several batches are compared, and the shape of outputs.
FITTED = {
  "dense": (lambda: dense("net"), (3,)),
  "masked_recurrent": (masked_recurrent, (7, 3)),
  "convolutional": (convolutional, (3,)),
}


def examples(name):
  """Inputs and targets of 22 examples."""
  rng = np.random.default_rng(0)
  y = rng.normal(size=(EXAMPLES, *FITTED[name][1])).astype("float32")
  if name == "masked_recurrent":
    return rng.integers(0, 11, size=(EXAMPLES, 7)), y
  shape = (6, 6, 2) if name == "convolutional" else (6,)
  return rng.normal(size=(EXAMPLES, *shape)).astype("float32"), y


def build_fitted(function):
  """The compiled model of a name in `FITTED` or a function, same weights."""
  keras.utils.set_random_seed(7)
  model = (FITTED[function][0] if function in FITTED else function)()
  model.compile(adam(), "mse", metrics=["mae"], jit_compile=False)
  return model


def fitted(model, name, epochs=1, batch_size=BATCH):
  """The history of a fit, and the weights at the end."""
  history = model.fit(
    *examples(name),
    batch_size=batch_size,
    epochs=epochs,
    shuffle=False,
    verbose=0,
  )
  return history.history, model.get_weights()


@functools.cache
def unplaced_fit(name):
  """`fitted` of the model of that name, on which nothing is placed."""
  return fitted(build_fitted(name), name)


def assert_same(found, expected, share=1e-5):
  """Losses and metrics to 1e-5, weights to a share of the largest one."""
  for name, values in expected[0].items():
    np.testing.assert_allclose(found[0][name], values, rtol=1e-5)
  for mine, theirs in zip(found[1], expected[1], strict=True):
    atol = share * max(np.abs(theirs).max(), 1e-3)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def split_placement(model, microbatches, seed=0):
  """A random placement of the split step on all devices."""
  traced = trace_keras(model, BATCH, microbatches=microbatches)
  return random_placement(traced, seed)

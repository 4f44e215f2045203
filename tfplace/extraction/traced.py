"""One step of a model as a flat GraphDef, and its execution in a session.

Variables are fed by placeholders, so graphs stay below the 2 GiB of a GraphDef.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_shape

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib
from tfplace.graph.argument_checks import whole_number
from tfplace.graph.estimate import OTHER, WeightSizes

DEFAULT_BATCH_SIZE = 32  # default of Keras' `fit`
_INIT = "tfplace_init"
_VARIABLES = frozenset(("VarHandleOp", "VariableV2", "Variable"))


@dataclasses.dataclass(frozen=True)
class VariableSpec:
  """Variable of a traced step.

  Attributes:
    node: name of its node in the GraphDef.
    shape: static shape.
    dtype: element type.
    value: initial value, or None if unknown (zeros are used).
    role: one of `tfplace.graph.estimate.ROLES`.
  """

  node: str
  shape: tuple[int, ...]
  dtype: tf.DType
  value: np.ndarray | None = None
  role: str = OTHER


@dataclasses.dataclass(frozen=True)
class FeedSpec:
  """Input of a traced step: a static shape, and a sample value if known."""

  tensor: str
  shape: tuple[int, ...]
  dtype: tf.DType
  value: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TracedStep:
  """One training or inference step in the form that a session runs.

  Each node of `graph_def` is one op of the extracted `OpGraph`, with the same
  name. Variables captured by the traced function are `VarHandleOp` nodes, each
  with its own `shared_name`.

  Attributes:
    name: name of the model.
    graph_def: flat graph; functional control flow is inlined where that is
      exact.
    feeds: placeholders to feed, by node name.
    fetches: names of tensors to fetch; in training, the loss comes first.
    targets: names of nodes to run for their effect (variable updates).
    variables: variables by node name.
    training: whether this is a training step.
    layers: op name -> names of the Keras layers, innermost first, that the op,
      gradient, variable or update belongs to; ops of no layer are absent.
    microbatches: number of microbatches.
    microbatch_sizes: examples of each microbatch; empty if unknown.
    weights: sizes of the variables of the Keras model, or None without one.
    batch_size: examples per step, or 0 if unknown.
  """

  name: str
  graph_def: tf.compat.v1.GraphDef
  feeds: Mapping[str, FeedSpec]
  fetches: tuple[str, ...]
  targets: tuple[str, ...]
  variables: Mapping[str, VariableSpec]
  training: bool
  layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )
  microbatches: int = 1
  weights: WeightSizes | None = None
  batch_size: int = 0
  microbatch_sizes: tuple[int, ...] = ()

  def without_values(self) -> "TracedStep":
    """Returns a copy without the values of variables and inputs."""
    return dataclasses.replace(
      self,
      variables={
        n: dataclasses.replace(v, value=None) for n, v in self.variables.items()
      },
      feeds={
        n: dataclasses.replace(f, value=None) for n, f in self.feeds.items()
      },
    )


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
  """Disables the cyclic garbage collector; can also be used as a decorator.

  During an extraction, it would traverse millions of live objects, which takes
  a quarter of the time.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()


def checked_batch_size(batch_size: int | None, model: str) -> int:
  """Returns a batch size of at least 1 as an int, or the default for None."""
  if batch_size is None:
    return DEFAULT_BATCH_SIZE
  number = whole_number(batch_size)
  if number is None:
    raise ExtractionError(
      f"batch size {batch_size!r:.60} of {model!r} is no whole number"
    )
  if number < 1:
    raise ExtractionError(f"batch size {number} of {model!r} is below 1")
  return number


def fill_batch(
  shape: tf.TensorShape, batch_size: int, tensor: str | None, model: str
) -> tuple[int, ...]:
  """Returns the shape of an input with its unknown first dimension filled."""
  dims = None if shape.rank is None else shape.as_list()
  if dims is None or None in dims[1:]:
    raise ExtractionError(
      f"input {tensor!r} of {model!r} has shape {shape}: only the first"
      " dimension may be unknown",
      op=tensor,
    )
  return tuple([batch_size if d is None else d for d in dims[:1]] + dims[1:])


def variables_of(
  graph_def: tf.compat.v1.GraphDef, where: str
) -> dict[str, VariableSpec]:
  """Collects variables without values; raises ExtractionError if not static."""
  result = {}
  for node in graph_def.node:
    if node.op not in _VARIABLES:
      continue
    shape = tensor_shape.as_shape(node.attr["shape"].shape)
    if not shape.is_fully_defined():
      raise ExtractionError(
        f"{where}: variable {node.name!r} has shape {shape}, which is not"
        " fully static",
        op=node.name,
      )
    dtype = tf.DType(node.attr["dtype"].type)
    result[node.name] = VariableSpec(node.name, tuple(shape.as_list()), dtype)
  return result


@dataclasses.dataclass(frozen=True)
class Initializers:
  """A graph with additional nodes that initialize its variables.

  Attributes:
    graph_def: the step's graph plus, per variable, a placeholder and an
      assignment on the variable's device.
    assignments: names of nodes to run once before the first step.
    feeds: tensor name -> value, for that run.
  """

  graph_def: tf.compat.v1.GraphDef
  assignments: tuple[str, ...]
  feeds: Mapping[str, np.ndarray]


def with_initializers(
  traced: TracedStep, graph_def: tf.compat.v1.GraphDef | None = None
) -> Initializers:
  """Adds an initialization of every variable; unknown values become zero.

  An assignment runs on the device of its variable. `graph_def` is the step's
  graph with devices set; its own by default.
  """
  check_runs_alone(traced)
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(traced.graph_def if graph_def is None else graph_def)
  nodes = node_lib.by_name(result)
  used = set(nodes)
  assignments, feeds = [], {}
  for number, spec in enumerate(traced.variables.values()):
    device = nodes[spec.node].device
    value = node_lib.unique_name(f"{_INIT}/value_{number}", used)
    assign = node_lib.unique_name(f"{_INIT}/assign_{number}", used)
    node = result.node.add(name=value, op="Placeholder", device=device)
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(spec.shape).as_proto())
    is_handle = nodes[spec.node].op == "VarHandleOp"
    op, attr = ("AssignVariableOp", "dtype") if is_handle else ("Assign", "T")
    node = result.node.add(name=assign, op=op, device=device)
    node.input.extend([spec.node, value])
    node.attr[attr].type = spec.dtype.as_datatype_enum
    assignments.append(assign)
    feeds[f"{value}:0"] = (
      np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
      if spec.value is None
      else spec.value
    )
  return Initializers(result, tuple(assignments), feeds)


def check_runs_alone(traced: TracedStep) -> None:
  """Checks that a separate session can run the step.

  An ExtractionError names what lives in the model's process, such as a lookup
  table.
  """
  resource = tf.resource.as_datatype_enum
  for node in traced.graph_def.node:
    if node.op == "Placeholder" and node.attr["dtype"].type == resource:
      readers = (n for n in traced.graph_def.node if node.name in n.input)
      layers = [traced.layers.get(n.name) for n in (node, *readers)]
      layer = next((names[0] for names in layers if names), None)
      who = repr(node.name) if layer is None else f"layer {layer!r}"
      raise ExtractionError(
        f"{traced.name!r} cannot run in a session of its own: {who} uses a"
        " lookup table or another resource that lives in the model's process",
        op=node.name,
      )


def feed_values(traced: TracedStep, seed: int = 0) -> dict[str, np.ndarray]:
  """Maps input tensors to their samples, or to generated values.

  Generated floats are drawn from [0, 1) with the seed. Generated integers are
  zero, because zero is a valid class or token id in any model; a float in [0,
  1) rounds down to one, too.
  """
  rng = np.random.default_rng(seed)
  return {f.tensor: _feed_value(f, rng) for f in traced.feeds.values()}


def _feed_value(feed: FeedSpec, rng: np.random.Generator) -> np.ndarray:
  if feed.value is not None:
    return feed.value
  if feed.dtype.is_floating:
    uniform = rng.random(feed.shape, np.float32)
    return uniform.astype(feed.dtype.as_numpy_dtype)
  if feed.dtype == tf.string:
    return np.full(feed.shape, b"", object)
  return np.zeros(feed.shape, feed.dtype.as_numpy_dtype)

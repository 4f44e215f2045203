"""A step of a model as one flat GraphDef, and running it in a session.

Values of variables go in through placeholders, so that a graph never carries
its weights (a GraphDef ends at 2 GiB).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_shape

from tfplace.core.protocols import whole_number
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib

DEFAULT_BATCH_SIZE = 32  # Keras' own default of `fit`
_INIT = "tfplace_init"
_VARIABLES = frozenset(("VarHandleOp", "VariableV2", "Variable"))


@dataclasses.dataclass(frozen=True)
class VariableSpec:
  """A variable of a traced step.

  Attributes:
    node: name of its node in the GraphDef.
    shape: static shape.
    dtype: element type.
    value: initial value, or None where it is unknown (zeros stand in).
  """

  node: str
  shape: tuple[int, ...]
  dtype: tf.DType
  value: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class FeedSpec:
  """An input of a traced step: fully static shape, and a sample if known."""

  tensor: str
  shape: tuple[int, ...]
  dtype: tf.DType
  value: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TracedStep:
  """One step (training or inference) as a session runs it.

  Every node of `graph_def` is one op of the extracted `OpGraph`, under the
  same name. Variables captured by the traced function are `VarHandleOp` nodes
  with a `shared_name` of their own.

  Attributes:
    name: name of the model.
    graph_def: flat graph; functional control flow is inlined where exact.
    feeds: placeholders to feed, by node name.
    fetches: tensor names to fetch; the loss comes first when training.
    targets: node names to run for their effect (updates of variables).
    variables: by node name.
    training: whether it is a training step.
    layers: op name -> names of the Keras layers whose op, gradient, variable or
      update it is, innermost first; without what belongs to no layer.
    microbatches: into which the batch is split.
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


def checked_batch_size(batch_size: int | None, model: str) -> int:
  """The batch size, or the default where it is None.

  Raises:
    ExtractionError: no whole number, or below 1.
  """
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
  """The static shape of an input, its unknown first dimension filled.

  Raises:
    ExtractionError: the rank or another dimension is unknown; names the input
      `tensor` and the model or file.
  """
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
  """Every variable by node name, of TensorFlow 1 or 2; no values.

  Raises:
    ExtractionError: a shape is not static; names `where` and the node.
  """
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
  """A graph with nodes that set the variables.

  Attributes:
    graph_def: the step's graph and, per variable, a placeholder and an
      assignment on the variable's device.
    assignments: nodes to run once before the first step.
    feeds: tensor name -> value for that run.
  """

  graph_def: tf.compat.v1.GraphDef
  assignments: tuple[str, ...]
  feeds: Mapping[str, np.ndarray]


def with_initializers(
  traced: TracedStep, graph_def: tf.compat.v1.GraphDef | None = None
) -> Initializers:
  """Adds the initialisation of every variable; zero where no value is known.

  Args:
    traced: the step.
    graph_def: its graph with devices set; `traced.graph_def` by default. An
      assignment takes the device of its variable.

  Raises:
    ExtractionError: the step uses a lookup table or another resource of the
      model's process, which a session of its own lacks.
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
  """Checks that a session of its own can run the step.

  Raises:
    ExtractionError: the step uses a lookup table or another resource of the
      model's process.
  """
  resource = tf.resource.as_datatype_enum
  for node in traced.graph_def.node:
    if node.op == "Placeholder" and node.attr["dtype"].type == resource:
      raise ExtractionError(
        f"{traced.name!r} cannot run in a session of its own: {node.name!r} is"
        " a lookup table or another resource that lives in the model's process",
        op=node.name,
      )


def feed_values(traced: TracedStep, seed: int = 0) -> dict[str, np.ndarray]:
  """Tensor name -> value: the samples, else seeded floats in [0, 1) and zeros.

  Zeros stand for integers, since they are valid class and token numbers
  whatever the model; a float in [0, 1) is one too, once it is rounded down.
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


def run_steps(
  traced: TracedStep, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[list[np.ndarray]]:
  """Runs one step per mapping of `feeds`; returns the fetches of each.

  A plain local session, to check a trace; timing lives in `tfplace.measure`.
  """
  prepared = with_initializers(traced)
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(prepared.graph_def, name="")
    with tf.compat.v1.Session(graph=graph) as session:
      session.run(list(prepared.assignments), dict(prepared.feeds))
      run = [list(traced.fetches), list(traced.targets)]
      return [session.run(run, dict(feed))[0] for feed in feeds]

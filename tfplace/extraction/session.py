"""Runs a traced step in a TensorFlow 1 session: initialise, feed, step.

Values of variables go in through placeholders, so that a graph never carries
its weights (a GraphDef ends at 2 GiB).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib
from tfplace.extraction.traced import FeedSpec, TracedStep

_RESOURCE = tf.resource.as_datatype_enum
_INIT = "tfplace_init"


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
  """Adds the initialisation of every variable.

  Args:
    traced: the step; a variable of unknown value starts at zero.
    graph_def: its graph with devices set; `traced.graph_def` by default. An
      assignment takes the device of its `VarHandleOp`.

  Raises:
    ExtractionError: the step uses a lookup table or another resource of the
      model's process, which a session of its own lacks.
  """
  _check_runs_alone(traced)
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
    feeds[f"{value}:0"] = _initial(spec.value, spec.shape, spec.dtype)
  return Initializers(result, tuple(assignments), feeds)


def _check_runs_alone(traced: TracedStep) -> None:
  for node in traced.graph_def.node:
    if node.op == "Placeholder" and node.attr["dtype"].type == _RESOURCE:
      raise ExtractionError(
        f"{traced.name!r} cannot run in a session of its own: {node.name!r} is"
        " a lookup table or another resource that lives in the model's process",
        op=node.name,
      )


def _initial(
  value: np.ndarray | None, shape: tuple[int, ...], dtype: tf.DType
) -> np.ndarray:
  if value is not None:
    return value
  return np.zeros(shape, dtype.as_numpy_dtype)


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

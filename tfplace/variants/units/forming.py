"""Forms units: which ops may be in one, and which share one."""

import collections
import itertools
import re
from collections.abc import Collection, Hashable

import numpy as np
import tensorflow as tf

from tfplace.extraction import kernels, nodes
from tfplace.graph import phases
from tfplace.graph.microbatches import microbatch_of, name_in_whole
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.op_names import GRADIENT_SCOPE, is_gradient
from tfplace.graph.recompute import original_name, segment_of
from tfplace.variants.units import convex

# A constant up to this size is copied into each unit that reads it.
INLINED_BYTES = 1 << 16
# A layer with more ops in a pass has units by name scope: it may be a model.
_MOST_OPS = 256
_FOREIGN_TYPES = frozenset({tf.resource, tf.string, tf.variant})
# Stateless ops whose results have no static shape, that XLA ignores, or that
# only an executor runs.
_REFUSED = frozenset({
  "Bincount", "CheckNumerics", "Const", "DenseBincount", "Enter", "Exit",
  "LoopCond", "Merge", "NextIteration", "NoOp", "Placeholder",
  "PlaceholderWithDefault", "Switch", "Unique", "UniqueV2", "Where",
})  # fmt: skip
_ON_VARIABLE = re.compile(
  "(Read|Assign|AssignAdd|AssignSub)VariableOp|Resource(Apply|Gather).*"
)


def compiles(op: tf.Operation) -> bool:
  """Returns whether an op may be in a unit."""
  if op.type in _REFUSED or op.op_def is None or op.op_def.is_stateful:
    return False
  node = op.node_def
  if nodes.function_names(node) or not kernels.xla_compiles(node):
    return False
  tensors = (*op.inputs, *op.outputs)
  return all(t.dtype.base_dtype not in _FOREIGN_TYPES for t in tensors)


def joins(op: tf.Operation) -> bool:
  """Returns whether a unit of the same device may also run an op outside units.

  These are small ops around units, reads of variables and writes to them.
  """
  if is_random(op.type) or not has_shapes(op):
    return False
  if _ON_VARIABLE.fullmatch(op.type):
    return kernels.xla_compiles(op.node_def)
  return compiles(op)


def has_shapes(op: tf.Operation) -> bool:
  """Returns whether XLA knows the shapes of what an op reads and returns."""
  return all(map(_is_known, (*op.inputs, *op.outputs)))


def sums_microbatches(op: tf.Operation) -> bool:
  """Returns whether an op adds gradients, or other results, of microbatches.

  It stays outside of units: it frees its terms, which an update would keep.
  """
  if op.type != "AddN" or microbatch_of(op.name) is not None:
    return False
  sources = [tensor.op for tensor in op.inputs]
  return any(
    microbatch_of(source.name) is not None or sums_microbatches(source)
    for source in sources
  )


def _is_known(tensor: tf.Tensor) -> bool:
  """Returns whether XLA knows a shape, also that of a sum over broadcast axes.

  TensorFlow does not infer which axes were broadcast, though their number
  follows from shapes.
  """
  source = tensor.op
  kinds = (source.type, *(before.op.type for before in source.inputs))
  return tensor.shape.is_fully_defined() or "BroadcastGradientArgs" in kinds


def is_random(kind: str) -> bool:
  """Returns whether ops of a type draw numbers, which XLA draws otherwise.

  They are compiled even alone, so that a step draws what Keras' compiled step
  draws.
  """
  return kind.startswith(("StatelessRandom", "StatelessTruncatedNormal"))


def _is_static(op: tf.Operation) -> bool:
  tensors = (*op.inputs, *op.outputs)
  return all(tensor.shape.is_fully_defined() for tensor in tensors)


def key_by_name(name: str, layers: Collection[str]) -> Hashable:
  """Returns what ops of one unit share, as far as their names tell."""
  is_backward = is_gradient(name_in_whole(name))
  scopes, _ = _layer_by_name(name, layers)
  return microbatch_of(name), segment_of(name), is_backward, scopes


def layer_by_name(name: str, layers: Collection[str]) -> str:
  """Returns the layer of an op, as far as its name tells, or ""."""
  return _layer_by_name(name, layers)[1]


def _layer_by_name(
  name: str, layers: Collection[str]
) -> tuple[tuple[str, ...], str]:
  """Returns the name scopes of an op up to that of its layer, and the layer.

  The scope of a layer is numbered if the layer was traced before.
  """
  whole = original_name(name_in_whole(name))
  scopes = whole.rpartition(GRADIENT_SCOPE)[2].split("/")[:-1]
  while scopes:
    for layer in (scopes[-1], re.sub(r"_\d+$", "", scopes[-1])):
      if layer in layers:
        return tuple(scopes), layer
    scopes.pop()
  return (), ""


def is_inlined(kind: str, num_bytes: float, num_inputs: int) -> bool:
  """Returns whether each unit has a copy of an op that it reads."""
  return kind == "Const" and num_bytes <= INLINED_BYTES and not num_inputs


def inlined_ops(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] whether each op is inlined."""
  offsets, _ = graph.in_csr
  rows = zip(
    graph.types,
    graph.op_output_bytes.tolist(),
    np.diff(offsets).tolist(),
    strict=True,
  )
  return np.array([is_inlined(*row) for row in rows], bool)


def form(graph: OpGraph, tf_graph: tf.Graph) -> np.ndarray:
  """Groups the ops of a step into units.

  Args:
    graph: ops and edges of the step; colocated ops stay outside of units.
    tf_graph: its ops in TensorFlow, with shapes.

  Returns:
    [num_ops] unit of each op, and -1 of ops outside units, inlined constants
    and ops that would be alone, unless they are random.
  """
  inlined = inlined_ops(graph)
  passes = _passes(graph)
  parts = (graph.microbatch, passes, graph.layer)
  segments = map(segment_of, graph.names)
  keys: list[Hashable | None] = list(
    zip(*(part.tolist() for part in parts), segments, strict=True)
  )
  sizes = collections.Counter(keys)
  known = set(graph.names)
  keys = [
    (key, _scope(name, known)) if sizes[key] > _MOST_OPS else key
    for key, name in zip(keys, graph.names, strict=True)
  ]
  for i, name in enumerate(graph.names):
    op = tf_graph.get_operation_by_name(name)
    is_fit = graph.colocation[i] < 0 and _is_static(op) and compiles(op)
    if sums_microbatches(op) or not is_fit:
      keys[i] = None
  offsets, edges = graph.in_csr
  sources = graph.edge_src[edges].tolist()
  before = [
    [s for s in sources[start:end] if not inlined[s]]
    for start, end in itertools.pairwise(offsets.tolist())
  ]
  order = [op for op in graph.topological_order.tolist() if not inlined[op]]
  group_of = np.array(convex.convex_groups(keys, before, order), np.int64)
  members = np.bincount(group_of[group_of >= 0], minlength=1)
  is_kept = (members[group_of] > 1) | np.array(
    list(map(is_random, graph.types))
  )
  return np.where((group_of >= 0) & is_kept, group_of, -1)


def _scope(name: str, ops: Collection[str]) -> str:
  """Returns the name scope of an op, and of a gradient that of its op."""
  scope = name.rpartition("/")[0]
  is_of_op = scope.rpartition(GRADIENT_SCOPE)[2] in ops
  return scope.rpartition("/")[0] if is_of_op else scope


def _passes(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] the pass of each op, see `graph.phases`."""
  if phases.is_microbatched(graph):
    return phases.phases(graph)
  forward, backward = phases.FORWARD, phases.BACKWARD
  others = np.where(phases.is_forward(graph), forward, backward)
  return np.where(phases.updates(graph), phases.UPDATE, others)

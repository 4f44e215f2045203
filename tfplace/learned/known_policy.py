"""What a policy of tfplace looks like as a SavedModel; the rest is none.

A policy that someone hands on is a program. So before one is loaded, its
functions, their arguments, its objects and every op must be those that
`export.export_policy` writes: computation on arguments and variables, and
nothing that runs while it is loaded.
"""

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.extraction.safety import side_effects
from tfplace.learned import Signature, find_method

# Every op of the networks of all strategies, whatever their options.
_OPS = re.compile(
  r"AddV2|ArgMax|BatchMatMulV2|BiasAdd|BlockLSTMV2|BroadcastTo|Cast"
  r"|ConcatV2|Const|Einsum|EnsureShape|Equal|ExpandDims|Fill|FloorDiv"
  r"|FusedBatchNormV3|GatherV2|Greater|GreaterEqual|Identity|Less"
  r"|LessEqual|LogicalAnd|LogicalOr|MatMul|Max|Maximum|Mean|Mul|NoOp"
  r"|OneHot|OnesLike|Pack|Pad|Prod|Range|ReadVariableOp|RealDiv|Relu"
  r"|Reshape|ResourceGather|Rsqrt|SelectV2|Shape|Sigmoid|Size|Softmax"
  r"|Split|SquaredDifference|StatefulPartitionedCall|StopGradient"
  r"|StridedSlice|Sub|Sum|Tanh|TensorListReserve|TensorListSetItem"
  r"|TensorListStack|Tile|Transpose|UnsortedSegmentMax|UnsortedSegmentSum"
  r"|While"
)
_KINDS = ("variable", "user_object", "function", "bare_concrete_function")
_CLASSES = ("_generic_user_object", "trackable_list_wrapper", "signature_map")


def check(meta_graph: Any, strategy: str, where: str) -> None:
  """Checks what is about to be loaded as a policy.

  Args:
    meta_graph: of its SavedModel, without what the loader never runs.
    strategy: that it is to be of.
    where: its directory, for errors.

  Raises:
    TrainingError: it is not what tfplace exports; says in what.
  """
  reason = _difference(meta_graph, find_method(strategy).functions)
  if reason:
    raise TrainingError(
      f"{where!r} is no policy of strategy {strategy!r} that tfplace exported:"
      f" {reason}; it was not loaded"
    )


def _difference(
  meta_graph: Any, functions: Mapping[str, Signature]
) -> str | None:
  nodes = meta_graph.object_graph_def.nodes
  if not nodes:
    return "it is of TensorFlow 1"
  found = side_effects.first(meta_graph.graph_def, _is_foreign(meta_graph))
  if found is not None:
    place = f" of function {found.function!r}" if found.function else ""
    return f"op {found.name!r} ({found.op}){place} is none of a policy's"
  for number, node in enumerate(nodes):
    kind = node.WhichOneof("kind")
    if kind not in _KINDS or node.saveable_objects or node.registered_name:
      return (
        f"its object {number} ({kind or 'of no kind'}) is none of a policy's"
      )
    if kind == "user_object" and node.user_object.identifier not in _CLASSES:
      return f"its object {number} is a {node.user_object.identifier[:80]!a}"
  children = {c.local_name: c.node_id for c in nodes[0].children}
  if set(children) != {"weights", "signatures", *functions}:
    return f"it has {', '.join(sorted(children))[:200]!a}"
  for name, arguments in functions.items():
    if not _has_arguments(meta_graph, children[name], arguments):
      return f"its function {name!r} takes other arguments"
  return None


def _is_foreign(meta_graph: Any) -> Any:
  """Whether a node is none of a policy's, given its function, for `first`."""
  own = {f.signature.name for f in meta_graph.graph_def.library.function}

  def is_foreign(node: Any, function: str | None) -> bool:
    known = function is not None and (_OPS.fullmatch(node.op) or node.op in own)
    return not known or side_effects.reaches_out(node)

  return is_foreign


def _has_arguments(meta_graph: Any, number: int, arguments: Signature) -> bool:
  """Whether an object is one function of these arguments, and variables."""
  objects = meta_graph.object_graph_def
  if not 0 <= number < len(objects.nodes):
    return False
  names = list(objects.nodes[number].function.concrete_functions)
  library = {f.signature.name: f for f in meta_graph.graph_def.library.function}
  if len(names) != 1 or names[0] not in library:
    return False
  bound = objects.concrete_functions[names[0]].bound_inputs
  given = library[names[0]].signature.input_arg
  types = [(a.name, a.type) for a in given[: len(given) - len(bound)]]
  return types == [
    (n, tf.as_dtype(t).as_datatype_enum) for n, (_, t) in arguments.items()
  ] and all(
    0 <= i < len(objects.nodes)
    and objects.nodes[i].WhichOneof("kind") == "variable"
    for i in bound
  )

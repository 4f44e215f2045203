"""Export of policies as SavedModels, and checks of untrusted policies.

A policy file is a program. `check_policy` allows only what `export_policy`
writes: computation, and nothing that runs during loading.
"""

import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfplace.errors import FormatError, TrainingError
from tfplace.extraction.safety import side_effects
from tfplace.formats import files
from tfplace.learned import Signature, find_method, policy_format
from tfplace.learned.policy_format import INFO_FILE, Exportable

# All ops of the networks of all strategies, for all options.
_OPS = re.compile(
  r"AddV2|ArgMax|BatchMatMulV2|BiasAdd|BroadcastTo|Cast"
  r"|ConcatV2|Const|Einsum|EnsureShape|Equal|ExpandDims|Fill|FloorDiv"
  r"|FusedBatchNormV3|GatherV2|Greater|GreaterEqual|Identity|Less"
  r"|LessEqual|LogicalAnd|LogicalOr|MatMul|Max|Maximum|Mean|Mul|NoOp"
  r"|OneHot|OnesLike|Pack|Pad|Prod|Range|ReadVariableOp|RealDiv|Relu"
  r"|Reshape|ResourceGather|ReverseV2|Rsqrt|SelectV2|Shape|Sigmoid|Size"
  r"|Softmax|Split|SquaredDifference|StatefulPartitionedCall|StopGradient"
  r"|StridedSlice|Sub|Sum|Tanh|TensorListFromTensor|TensorListGetItem"
  r"|TensorListReserve|TensorListSetItem|TensorListStack|Tile|Transpose"
  r"|Unpack|UnsortedSegmentMax|UnsortedSegmentSum|While"
)
_KINDS = ("variable", "user_object", "function", "bare_concrete_function")
_CLASSES = ("_generic_user_object", "trackable_list_wrapper", "signature_map")


def export_policy(
  policy: Exportable,
  directory: str | os.PathLike[str],
  add: Callable[[pathlib.Path], None] | None = None,
) -> None:
  """Writes a policy atomically; replaces an existing one.

  Args:
    add: Writes further files into the folder that it is given.

  Raises:
    TrainingError: `directory` exists and is not an exported policy, or cannot
      be written.
  """
  target = pathlib.Path(os.path.realpath(directory))
  policy_format.check_export_dir(target)
  # The module must not track Keras layers, because loading would need Keras 2.
  module = tf.Module(name="exported_policy")
  module.weights = list(policy.variables)
  for name, function in policy.functions.items():
    setattr(module, name, function)
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.new_folder(str(target.parent)) as made:
      tf.saved_model.save(module, made)
      (pathlib.Path(made) / INFO_FILE).write_text(
        json.dumps(policy.info(), indent=2) + "\n", encoding="utf-8"
      )
      if add is not None:
        add(pathlib.Path(made))
      policy_format.check_export_dir(target)  # Writing may take minutes.
      files.put_folder(made, str(target))
  except (OSError, tf.errors.OpError, FormatError) as error:
    raise TrainingError(
      f"policy directory {str(target)!r} cannot be written: {error}"
    ) from error


def as_function(
  method: Callable[..., Any], signature: Signature
) -> tf.types.experimental.PolymorphicFunction:
  """Wraps a method with keyword arguments as a function to export."""
  specs = [tf.TensorSpec(s, t, n) for n, (s, t) in signature.items()]

  @tf.function(input_signature=specs, autograph=False)
  def call(*tensors: tf.Tensor) -> Any:
    return method(**dict(zip(signature, tensors, strict=True)))

  return call


def check_policy(meta_graph: Any, strategy: str, where: str) -> None:
  """Checks the meta graph of a policy before it is loaded from `where`.

  Raises:
    TrainingError: The policy differs from what tfplace exports; the message
      names the difference.
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
  own = {f.signature.name for f in meta_graph.graph_def.library.function}

  def is_foreign(node: Any, function: str | None) -> bool:
    known = function is not None and (_OPS.fullmatch(node.op) or node.op in own)
    return not known or side_effects.reaches_out(node)

  return is_foreign


def _has_arguments(meta_graph: Any, number: int, arguments: Signature) -> bool:
  """Checks that an object is one function of arguments and variables."""
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

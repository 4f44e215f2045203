"""Units in a TensorFlow graph: calls of functions that XLA compiles.

Each unit becomes a function and one call of it on the device of its ops. A
function is named by its content, so equal units of layers and microbatches are
compiled once per device. TensorFlow's own clusters (`_XlaScope`) are compiled
one by one, however equal.

In the step that `fit` runs, calls also read and write the variables of their
device, and take the small ops between units.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.handle_data_util import copy_handle_data

from tfplace.extraction import nodes
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.graph.recompute import is_clone
from tfplace.variants.units import convex, forming, order
from tfplace.variants.units.functions import Unit, add_calls
from tfplace.variants.units.lowering import UNKNOWN_SHAPE, Lowering
from tfplace.variants.units.order import Flow

_BATCH = 5040  # Divisible by all counts of microbatches that are likely.
_LENGTH = 64  # of other axes without a static size


class Compiled(NamedTuple):
  """Result of `compile_units`.

  Attributes:
    calls: each call -> the ops of its unit.
    results: the tensors in place of those given.
    refused: ops that XLA refuses, and why; they are outside of units.
  """

  calls: dict[tf.Operation, list[tf.Operation]]
  results: list[tf.Tensor]
  refused: dict[tf.Operation, str]


def compile_units(
  graph: tf.Graph,
  unit_of: Callable[[tf.Operation], Hashable | None],
  *,
  results: Sequence[tf.Tensor],
  later: Iterable[tuple[int, int]],
  turn_of: Callable[[str], int | None],
  batch_size: int = DEFAULT_BATCH_SIZE,
) -> Compiled:
  """Replaces units by compiled calls in a function's graph while it is traced.

  Units of a device are merged where neither a transfer nor another microbatch
  waits in between. The ops of a unit stay in the graph, but TensorFlow prunes
  them, as nothing reads them anymore.

  Args:
    graph: the graph.
    unit_of: unit of an op, or None. A unit is divided by device, and where it
      would not be convex.
    results: tensors that the graph's user reads.
    later: (earlier, later) positions of ops between which TensorFlow will add
      control edges.
    turn_of: turn of an op by name, or None in order of arrival.
    batch_size: examples of a batch that the step may take.
  """
  _pass_identities(graph)
  wanted = {tensor.ref() for tensor in results}
  flow = Flow(graph.get_operations(), wanted, later, copies_reads=True)
  shaped = _shaped(graph, batch_size)
  lowering = Lowering(graph, shaped)
  refused: dict[tf.Operation, str] = {}
  while True:
    group_of = _grouped(
      flow, unit_of=unit_of, turn_of=turn_of, shaped=shaped, refused=refused
    )
    compiled = functions(flow, group_of)
    new = lowering.refused(compiled)
    if not new:
      break
    refused |= new
  if not compiled:
    return Compiled({}, list(results), refused)
  calls, replaced, call_of = put_calls(graph, flow, compiled)
  listed, listing = flow.listed(call_of), graph.get_operations
  count = len(listing())
  # As ops are listed, TensorFlow adds control edges between those of one
  # variable when the trace ends.
  graph.get_operations = lambda: [*listed, *listing()[count:]]
  new_results = [replaced.get(tensor.ref(), tensor) for tensor in results]
  return Compiled(calls, new_results, refused)


def _pass_identities(graph: tf.Graph) -> None:
  """Lets readers of `IdentityN` read its inputs, each on its own device.

  Keras' optimizers pass all gradients through one, which would bring them to
  one device and back.
  """
  for op in graph.get_operations():
    if op.type == "IdentityN":
      for source, tensor in zip(op.inputs, op.outputs, strict=True):
        for reader in tensor.consumers():
          for i, read in enumerate(reader.inputs):
            if read is tensor:
              reader._update_input(i, source)


def _grouped(
  flow: Flow,
  *,
  unit_of: Callable[[tf.Operation], Hashable | None],
  turn_of: Callable[[str], int | None],
  shaped: Mapping[str, tf.Operation],
  refused: dict[tf.Operation, str],
) -> list[int]:
  """Returns the group of each op that makes one call, or -1."""
  ops = flow.ops
  keys: list[Hashable | None] = [None] * len(ops)
  # XLA would merge a clone with its op.
  merges = not any(is_clone(op.name) for op in ops)
  for i in flow.order:
    op = ops[i]
    if op in refused or forming.sums_microbatches(op):
      continue
    unit = unit_of(op)
    if unit is not None and forming.compiles(op):
      if forming.has_shapes(shaped[op.name]):
        keys[i] = unit, op.device
      else:
        refused[op] = UNKNOWN_SHAPE
    elif merges and forming.joins(shaped[op.name]):
      keys[i] = i, op.device
  group_of = convex.convex_groups(keys, flow.before, flow.order)
  if merges:
    labels = order.merged(flow, group_of, turn_of)
    group_of = convex.convex_groups(
      labels, flow.before, flow.order, first_fit=True
    )
  return group_of


def functions(flow: Flow, group_of: Sequence[int]) -> list[Unit]:
  """Makes the functions of groups that are worth a call."""
  members: dict[int, list[tf.Operation]] = {}
  for i in flow.order:
    if group_of[i] >= 0:
      members.setdefault(group_of[i], []).append(flow.ops[i])
  return [
    unit
    for group in members.values()
    if len(group) > 1 or forming.is_random(group[0].type)
    if (unit := Unit(flow, group)).has_effects
  ]


def put_calls(
  graph: tf.Graph, flow: Flow, made: Sequence[Unit]
) -> tuple[
  dict[tf.Operation, list[tf.Operation]],
  dict[Any, tf.Tensor],
  dict[str, tf.Operation],
]:
  """Lets what is outside of units read and follow their calls.

  Returns call -> ops, old tensor -> new tensor, and name of an op -> its call.
  """
  calls = add_calls(graph, made)
  replaced: dict[Any, tf.Tensor] = {}
  call_of: dict[str, tf.Operation] = {}
  for unit, call in zip(made, calls, strict=True):
    for old, new in zip(unit.outputs, call.outputs, strict=True):
      new.set_shape(old.shape)
      replaced[old.ref()] = new
    call_of.update(dict.fromkeys((op.name for op in unit.ops), call))
  for op in (*flow.ops, *calls):
    if op.name not in call_of:
      _redirect(op, replaced, call_of)
  members = {c: unit.ops for unit, c in zip(made, calls, strict=True)}
  return members, replaced, call_of


def _redirect(
  op: tf.Operation,
  replaced: Mapping[Any, tf.Tensor],
  call_of: Mapping[str, tf.Operation],
) -> None:
  """Lets an op read and follow calls in place of the ops of units."""
  for i, tensor in enumerate(op.inputs):
    new = replaced.get(tensor.ref())
    if new is not None:
      op._update_input(i, new)
  controls = dict.fromkeys(call_of.get(c.name, c) for c in op.control_inputs)
  controls.pop(op, None)
  if list(controls) != list(op.control_inputs):
    op._remove_all_control_inputs()
    op._add_control_inputs(list(controls))


def _shaped(graph: tf.Graph, batch_size: int) -> dict[str, tf.Operation]:
  """Returns copies of a function's ops, with the shapes of a full batch."""
  graph_def = graph.as_graph_def()
  kept = [node for node in graph_def.node if node.op != "Placeholder"]
  names = [node.name for node in kept]
  del graph_def.node[:]
  graph_def.node.extend(_with_single_shapes(kept))
  elements = _shapes_of_elements(graph_def)
  op_of = {op.name: op for op in graph.get_operations()}
  for size in (_BATCH, batch_size):
    for node in elements:
      shape = tf.make_ndarray(node.attr["value"].tensor).copy()
      shape[0] = size
      node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(shape))
    with tf.Graph().as_default():
      given = {}
      for op in op_of.values():
        if op.type == "Placeholder":
          (tensor,) = op.outputs
          shape = tensor.shape
          if shape.rank:
            first, *others = shape
            rest = [_LENGTH if n is None else n for n in others]
            shape = [size if first is None else first, *rest]
          given[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, shape)
          copy_handle_data(tensor, given[tensor.name])
      try:
        copies = tf.graph_util.import_graph_def(
          graph_def, given, names, name="copy"
        )
      except ValueError:  # The step does not take batches of this size.
        continue
    inputs = {op_of[name[:-2]].name: t.op for name, t in given.items()}
    return {**inputs, **dict(zip(names, copies, strict=True))}
  return op_of


def _shapes_of_elements(
  graph_def: tf.compat.v1.GraphDef,
) -> list[nodes.NodeDef]:
  """Gives each stack of a list a shape of its elements of its own.

  TensorFlow does not infer shapes through lists, which recurrent layers fill
  with a batch for each time step.

  Returns:
    The constants that were added, of shapes that begin with an unknown size.
  """
  node_of = {node.name: node for node in graph_def.node}
  added = []
  for node in list(graph_def.node):
    shape = node_of.get(node.input[1]) if node.op == "TensorListStack" else None
    if shape is not None and shape.op == "Const":
      value = tf.make_ndarray(shape.attr["value"].tensor)
      if value.ndim == 1 and len(value) and value[0] < 0:
        added.append(graph_def.node.add())
        added[-1].CopyFrom(shape)
        added[-1].name = node.input[1] = f"{node.name}/of_batch"
  return added


def _with_single_shapes(
  given: Sequence[nodes.NodeDef],
) -> list[nodes.NodeDef]:
  """Returns nodes that read `Shape` in place of `ShapeN`.

  TensorFlow evaluates what follows from the first, but not from the other.
  """
  result = list(given)
  shape_of: dict[tuple[str, int], str] = {}
  for node in given:
    node.attr.pop("_class", None)
    for i, text in enumerate(node.input if node.op == "ShapeN" else ()):
      if not text.startswith("^"):
        one = type(node)(name=f"{node.name}/shape_{i}", op="Shape")
        one.input.append(text)
        for key in ("T", "out_type"):
          one.attr[key].CopyFrom(node.attr[key])
        shape_of[node.name, i] = one.name
        result.append(one)
  for node in given:
    for i, text in enumerate(node.input):
      node.input[i] = shape_of.get(nodes.split_tensor(text), text)
  return result

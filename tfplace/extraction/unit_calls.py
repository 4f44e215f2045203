"""Units in a TensorFlow graph: calls of functions that XLA compiles.

Each unit becomes a function and one call of it on the device of its ops. A
function is named by its content, so equal units of layers and microbatches are
compiled once per device. TensorFlow's own clusters (`_XlaScope`) are compiled
one by one, however equal.
"""

import dataclasses
import graphlib
import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context

from tfplace.core.microbatches import microbatch_of
from tfplace.core.op_graph import OpGraph
from tfplace.core.recompute import is_clone
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes, units
from tfplace.extraction.traced import TracedStep

_MUST_COMPILE = "_XlaMustCompile"
_SCOPE = "tfplace_unit"


def compile_units(
  graph: tf.Graph,
  unit_of: Callable[[tf.Operation], Hashable | None],
  results: Sequence[tf.Tensor] = (),
  later: Iterable[tuple[int, int]] = (),
  turn_of: Callable[[str], int | None] | None = None,
) -> tuple[dict[tf.Operation, list[tf.Operation]], list[tf.Tensor]]:
  """Replaces units of a graph by compiled calls, in place.

  The ops of a unit stay in the graph, but nothing reads them anymore, so a
  session or a function prunes them.

  Args:
    graph: the graph; a function's graph while it is traced.
    unit_of: unit of an op, or None. A unit is divided by device, and where it
      would not be convex.
    results: tensors that the graph's user reads.
    later: (earlier, later) positions of ops between which TensorFlow will add
      control edges.
    turn_of: turn of an op by name, or None in order of arrival. If given, units
      of a device are merged where neither a transfer nor another microbatch
      waits in between.

  Returns:
    Each call -> the ops of its unit, and the tensors in place of `results`.
  """
  wanted = {tensor.ref() for tensor in results}
  ops = graph.get_operations()
  groups = _groups(ops, unit_of, later, turn_of)
  made = [unit for group in groups if (unit := _Unit(group, wanted)).outputs]
  if not made:
    return {}, list(results)
  calls = _calls(graph, made)
  replaced: dict[Any, tf.Tensor] = {}
  call_of: dict[str, tf.Operation] = {}
  for unit, call in zip(made, calls, strict=True):
    for old, new in zip(unit.outputs, call.outputs, strict=True):
      new.set_shape(old.shape)
      replaced[old.ref()] = new
    call_of.update(dict.fromkeys((op.name for op in unit.ops), call))
  for op in (*ops, *calls):
    if op.name not in call_of:
      _redirect(op, replaced, call_of)
  return (
    {call: unit.ops for unit, call in zip(made, calls, strict=True)},
    [replaced.get(tensor.ref(), tensor) for tensor in results],
  )


def _groups(
  ops: Sequence[tf.Operation],
  unit_of: Callable[[tf.Operation], Hashable | None],
  later: Iterable[tuple[int, int]],
  turn_of: Callable[[str], int | None] | None,
) -> list[list[tf.Operation]]:
  """Returns the ops of each call in topological order; see `compile_units`."""
  index = {op.name: i for i, op in enumerate(ops)}
  inlined = [_is_inlined(op) for op in ops]
  before = [
    [
      at
      for other in (*(t.op for t in op.inputs), *op.control_inputs)
      if not inlined[at := index[other.name]]
    ]
    for op in ops
  ]
  for earlier, after in later:
    before[after].append(earlier)
  keys: list[Hashable | None] = [
    None
    if inlined[i] or (unit := unit_of(op)) is None or not units.compiles(op)
    else (unit, op.device)
    for i, op in enumerate(ops)
  ]
  order = [i for i in _sorted(dict(enumerate(before))) if not inlined[i]]
  found = units.grouped(keys, before, order)
  if turn_of is not None and not any(is_clone(op.name) for op in ops):
    labels = _merged(ops, found, before, order, turn_of)
    found = units.grouped(labels, before, order, first_fit=True)
  groups: dict[int, list[tf.Operation]] = {}
  for i in order:
    if found[i] >= 0:
      groups.setdefault(found[i], []).append(ops[i])
  return [
    group
    for group in groups.values()
    if len(group) > 1 or units.is_random(group[0].type)
  ]


def _sorted(before: Mapping[int, Iterable[int]]) -> Iterable[int]:
  """Returns nodes after their predecessors."""
  return graphlib.TopologicalSorter(before).static_order()


def _merged(
  ops: Sequence[tf.Operation],
  found: Sequence[int],
  before: Sequence[Sequence[int]],
  order: Sequence[int],
  turn_of: Callable[[str], int | None],
) -> list[Hashable | None]:
  """Returns a key of each op that units share which may be merged.

  A unit of the same device and microbatch is merged with those before it unless
  it waits for a transfer, or one of them sends a result. In turn, no unit of
  another microbatch is between them.
  """
  vertex = [at if at >= 0 else -1 - i for i, at in enumerate(found)]
  first: dict[int, int] = {}
  earlier: dict[int, dict[int, None]] = {}
  turns: dict[int, float] = {}
  for i in order:
    at = vertex[i]
    first.setdefault(at, i)
    turn = turn_of(ops[i].name)
    if turn is not None:
      turns[at] = min(turns.get(at, turn), turn)
    earlier.setdefault(at, {}).update(
      {vertex[j]: None for j in before[i] if vertex[j] != at}
    )
  part = {
    at: (ops[i].device, microbatch_of(ops[i].name)) for at, i in first.items()
  }

  def is_apart(one: int, other: int) -> bool:
    """Returns whether a transfer or another microbatch is between vertices."""
    (device, mine), (far, its) = part[one], part[other]
    is_sent = bool(device) and bool(far) and device != far
    return is_sent or (None not in (mine, its) and mine != its)

  sends = {b for a, them in earlier.items() for b in them if is_apart(b, a)}
  sequence = sorted(_sorted(earlier), key=lambda at: turns.get(at, 0))
  count: dict[Hashable, int] = {}
  ended: set[Hashable] = set()
  last: dict[str, Hashable] = {}
  label: dict[int, Hashable] = {}
  for at in sequence:
    if at < 0:
      continue
    key = part[at]
    is_next = not turns or last.get(key[0], key) == key
    waits = any(is_apart(b, at) for b in earlier[at])
    if waits or key in ended or not is_next:
      count[key] = count.get(key, 0) + 1
      ended.discard(key)
    last[key[0]] = key
    label[at] = key, count.get(key, 0)
    if at in sends:
      ended.add(key)
  return [label.get(at) for at in vertex]


def in_units(traced: TracedStep, graph: OpGraph) -> TracedStep:
  """Returns a step whose nodes are the ops of its graph of units.

  Args:
    traced: the step without units.
    graph: its graph, see `cost.fusion`; any other is of the step's own ops.
  """
  if not graph.members:
    return traced
  unit_of = {
    member: unit
    for unit, members in graph.members.items()
    for member in members
  }
  with tf.Graph().as_default() as tf_graph:
    tf.import_graph_def(traced.graph_def, name="")
    results = [tf_graph.get_tensor_by_name(_full(t)) for t in traced.fetches]
    calls, results = compile_units(
      tf_graph, lambda op: unit_of.get(op.name), results
    )
    name_of = {call.name: unit_of[ops[0].name] for call, ops in calls.items()}
    whole = tf_graph.as_graph_def()
  result = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
  kept = set(graph.index)
  for node in whole.node:
    name = name_of.get(node.name, node.name)
    if name not in kept:
      continue
    kept.discard(name)
    added = result.node.add()
    added.CopyFrom(node)
    added.name = name
    for i, text in enumerate(node.input):
      source, output = nodes.split_tensor(text)
      added.input[i] = nodes.join_tensor(name_of.get(source, source), output)
  if kept:
    name = min(kept)
    raise ExtractionError(
      f"unit {name!r} of {traced.name!r} is not a unit of the traced step",
      op=name,
    )
  fetches = []
  for tensor in results:
    source = tensor.op.name
    fetches.append(f"{name_of.get(source, source)}:{tensor.value_index}")
  layers = {
    unit: traced.layers[member]
    for member, unit in unit_of.items()
    if member in traced.layers
  }
  return dataclasses.replace(
    traced,
    graph_def=result,
    fetches=tuple(fetches),
    layers={**traced.layers, **layers},
  )


def _full(tensor: str) -> str:
  return tensor if ":" in tensor else f"{tensor}:0"


def _is_inlined(op: tf.Operation) -> bool:
  """Returns whether each unit that reads a constant has a copy of it."""
  if op.type != "Const" or op.control_inputs:
    return False
  tensor = op.outputs[0]
  count = tensor.shape.num_elements()
  return count is not None and count * tensor.dtype.size <= units.INLINED_BYTES


class _Unit:
  """A unit as a function of the tensors that it reads.

  Attributes:
    ops: its ops, in topological order.
    inputs: tensors from outside, but constants.
    outputs: tensors that are read outside, or wanted.
    controls: ops outside that precede its ops.
    function: the `FunctionDef`.
  """

  def __init__(self, ops: list[tf.Operation], wanted: set[Any]) -> None:
    self.ops = ops
    names = {op.name for op in ops}
    self.outputs = [
      tensor
      for op in ops
      for tensor in op.outputs
      if tensor.ref() in wanted
      or any(reader.name not in names for reader in tensor.consumers())
    ]
    self.controls = list(
      {
        control.name: control
        for op in ops
        for control in op.control_inputs
        if control.name not in names
      }.values()
    )
    self.inputs: list[tf.Tensor] = []
    self._names: dict[str, str] = {}
    self._arguments: dict[Any, str] = {}
    self.function = function_pb2.FunctionDef()
    for op in ops:
      self._add(op, names)
    self._sign()

  def _add(self, op: tf.Operation, members: set[str]) -> None:
    inputs = [self._input(tensor, members) for tensor in op.inputs]
    local = self._names[op.name] = f"n{len(self._names)}"
    node = self.function.node_def.add(name=local, op=op.type)
    for key, value in op.node_def.attr.items():
      if not key.startswith("_"):
        node.attr[key].CopyFrom(value)
    node.input.extend(inputs)
    node.input.extend(
      f"^{self._names[control.name]}"
      for control in op.control_inputs
      if control.name in members
    )

  def _input(self, tensor: tf.Tensor, members: set[str]) -> str:
    op = tensor.op
    if op.name not in members:
      if not _is_inlined(op):
        if tensor.ref() not in self._arguments:
          self._arguments[tensor.ref()] = f"a{len(self.inputs)}"
          self.inputs.append(tensor)
        return self._arguments[tensor.ref()]
      if op.name not in self._names:
        self._add(op, members)
    return self._local(tensor)

  def _local(self, tensor: tf.Tensor) -> str:
    """Names an output in a function: node, output argument, position in it."""
    op, position = tensor.op, tensor.value_index
    for argument in op.op_def.output_arg:
      count = 1
      if argument.number_attr:
        count = op.get_attr(argument.number_attr)
      elif argument.type_list_attr:
        count = len(op.get_attr(argument.type_list_attr))
      if position < count:
        return f"{self._names[op.name]}:{argument.name}:{position}"
      position -= count
    raise AssertionError(tensor.name)

  def _sign(self) -> None:
    signature = self.function.signature
    for i, tensor in enumerate(self.inputs):
      signature.input_arg.add(name=f"a{i}", type=tensor.dtype.as_datatype_enum)
    for i, tensor in enumerate(self.outputs):
      signature.output_arg.add(name=f"r{i}", type=tensor.dtype.as_datatype_enum)
      self.function.ret[f"r{i}"] = self._local(tensor)
    for key in (_MUST_COMPILE, "_noinline"):
      self.function.attr[key].b = True
    content = self.function.SerializeToString(deterministic=True)
    signature.name = f"{_SCOPE}_{hashlib.sha256(content).hexdigest()[:16]}"


def _calls(graph: tf.Graph, made: Sequence[_Unit]) -> list[tf.Operation]:
  """Adds the call of each unit to the graph, on tensors of the old ops."""
  graph_def = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
  functions = {unit.function.signature.name: unit.function for unit in made}
  graph_def.library.function.extend(functions.values())
  given: dict[str, tf.Tensor] = {}
  for i, unit in enumerate(made):
    node = graph_def.node.add(name=f"unit_{i}", op="PartitionedCall")
    node.device = unit.ops[0].device
    for j, tensor in enumerate(unit.inputs):
      node.input.append(f"input_{i}_{j}:0")
      given[f"input_{i}_{j}:0"] = tensor
    node.attr["f"].func.name = unit.function.signature.name
    node.attr[_MUST_COMPILE].b = True
    for key, tensors in (("Tin", unit.inputs), ("Tout", unit.outputs)):
      types = node.attr[key].list
      types.type.extend(t.dtype.as_datatype_enum for t in tensors)
      types.SetInParent()
  # A function that is traced hands on no functions to those that call it.
  known = context.context()
  for name, function in functions.items():
    if not known.has_function(name):
      known.add_function_def(function)
  with graph.as_default(), graph.device(None):
    calls = tf.graph_util.import_graph_def(
      graph_def,
      input_map=given,
      return_elements=[node.name for node in graph_def.node],
      name=_SCOPE,
    )
  for unit, call in zip(made, calls, strict=True):
    call._add_control_inputs(unit.controls)
  return list(calls)


def _redirect(
  op: tf.Operation,
  replaced: dict[Any, tf.Tensor],
  call_of: dict[str, tf.Operation],
) -> None:
  """Lets an op read and follow calls in place of the ops of units."""
  for i, tensor in enumerate(op.inputs):
    new = replaced.get(tensor.ref())
    if new is not None:
      op._update_input(i, new)
  controls = op.control_inputs
  if any(control.name in call_of for control in controls):
    op._remove_all_control_inputs()
    op._add_control_inputs(
      list(
        {
          found.name: found
          for control in controls
          if (found := call_of.get(control.name, control)) is not op
        }.values()
      )
    )

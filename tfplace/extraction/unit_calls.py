"""Units in a TensorFlow graph: calls of functions that XLA compiles.

Each unit becomes a function and one call of it on the device of its ops. A
function is named by its content, so equal units of layers and microbatches are
compiled once per device. TensorFlow's own clusters (`_XlaScope`) are compiled
one by one, however equal.

In the step that `fit` runs, calls also read and write the variables of their
device, and take the small ops between units.
"""

import dataclasses
import graphlib
import hashlib
import heapq
from collections.abc import (
  Callable,
  Container,
  Hashable,
  Iterable,
  Mapping,
  Sequence,
  Set,
)
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework.auto_control_deps_utils import (
  READ_ONLY_RESOURCE_INPUTS_ATTR,
  RESOURCE_READ_OPS,
)
from tensorflow.python.ops.handle_data_util import copy_handle_data

from tfplace.core.microbatches import microbatch_of
from tfplace.core.op_graph import OpGraph
from tfplace.core.recompute import is_clone
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes, units
from tfplace.extraction.traced import TracedStep

_MUST_COMPILE = "_XlaMustCompile"
_SCOPE = "tfplace_unit"
_READ = "ReadVariableOp"
_BATCH = 5040  # Divisible by all counts of microbatches that are likely.


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
  if turn_of is not None:
    _pass_identities(graph)
  wanted = {tensor.ref() for tensor in results}
  flow = _Flow(graph.get_operations(), wanted, later, turn_of is not None)
  ops, found = flow.ops, _grouped(graph, flow, unit_of, turn_of)
  members: dict[int, list[tf.Operation]] = {}
  for i in flow.order:
    if found[i] >= 0:
      members.setdefault(found[i], []).append(ops[i])
  made = [
    unit
    for group in members.values()
    if len(group) > 1 or units.is_random(group[0].type)
    if (unit := _Unit(flow, group)).has_effects
  ]
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
  if turn_of is not None:
    _leave_out(graph, flow, call_of)
  return (
    {call: unit.ops for unit, call in zip(made, calls, strict=True)},
    [replaced.get(tensor.ref(), tensor) for tensor in results],
  )


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


class _Flow:
  """The order of a graph's ops, and those of which each unit has a copy.

  Attributes:
    ops: all ops.
    wanted: references to tensors that the graph's user reads.
    copied: positions of small constants and of reads of variables, which units
      read from the variable itself. All else is about the other ops.
    same: name of a copied read -> the first that reads the same value.
    before: predecessors of each op.
    order: topological order, as ops were created where edges allow it.
    later: positions of ops in program order, pair by pair.
    earlier: name of an op -> ops before it in program order.
  """

  def __init__(
    self,
    ops: Sequence[tf.Operation],
    wanted: Set[Any],
    later: Iterable[tuple[int, int]],
    copies_reads: bool,
  ) -> None:
    self.ops, self.wanted = ops, wanted
    index = {op.name: i for i, op in enumerate(ops)}
    before = [[index[other.name] for other in _before(op)] for op in ops]
    self.earlier: dict[str, list[str]] = {}
    after: dict[int, list[int]] = {}
    self.later = list(later)
    for one, other in self.later:
      before[other].append(one)
      after.setdefault(one, []).append(other)
      self.earlier.setdefault(ops[other].name, []).append(ops[one].name)
    order = _sorted(dict(enumerate(before)))
    place = {i: at for at, i in enumerate(order)}
    self.copied = {i for i, op in enumerate(ops) if _is_inlined(op)}
    self.same: dict[str, tf.Tensor] = {}
    first: dict[Any, tf.Tensor] = {}
    for i, op in enumerate(ops):
      if copies_reads and self._is_free(op):
        # A copy is read when its reader runs, which no write may precede.
        readers = [index[reader.name] for reader in op.outputs[0].consumers()]
        writes = after.get(i, [])
        if all(place[r] < place[w] for r in readers for w in writes):
          self.copied.add(i)
          value = op.inputs[0].ref(), *self.earlier.get(op.name, ()), *writes
          self.same[op.name] = first.setdefault(value, op.outputs[0])
          for write in writes:
            before[write] += readers
    self.order = [i for i in order if i not in self.copied]
    self.before = [
      [
        at
        for other in them
        for at in (before[other] if other in self.copied else (other,))
        if at not in self.copied
      ]
      for them in before
    ]
    self.copies = {ops[i].name for i in self.copied}

  def is_read_in(self, tensor: tf.Tensor, units_: Container[str]) -> bool:
    """Returns whether a tensor has readers, and all are ops of units."""
    names = [reader.name for reader in tensor.consumers()]
    is_inside = bool(names) and all(name in units_ for name in names)
    return is_inside and tensor.ref() not in self.wanted

  def _is_free(self, op: tf.Operation) -> bool:
    """Returns whether an op is a read that only its variable orders."""
    if op.type != _READ or op.control_inputs or op._control_outputs:
      return False
    return op.outputs[0].ref() not in self.wanted


def _grouped(
  graph: tf.Graph,
  flow: _Flow,
  unit_of: Callable[[tf.Operation], Hashable | None],
  turn_of: Callable[[str], int | None] | None,
) -> list[int]:
  """Returns the group of each op that makes one call, or -1."""
  ops, before = flow.ops, flow.before
  keys: list[Hashable | None] = [None] * len(ops)
  if any(is_clone(op.name) for op in ops):  # XLA would merge it with its op.
    turn_of = None
  shaped = {} if turn_of is None else _of_one_batch(graph)
  for i in flow.order:
    unit = unit_of(ops[i])
    if unit is not None and units.compiles(ops[i]):
      keys[i] = unit, ops[i].device
    elif (copy := shaped.get(ops[i].name)) and units.joins(copy):
      keys[i] = None if _sums_microbatches(ops[i]) else (i, ops[i].device)
  found = units.grouped(keys, before, flow.order)
  if turn_of is not None:
    labels = _merged(ops, found, before, flow.order, turn_of)
    found = units.grouped(labels, before, flow.order, first_fit=True)
  return found


def _sums_microbatches(op: tf.Operation) -> bool:
  """Returns whether an op frees its terms, which an update would keep."""
  is_of_all = op.type == "AddN" and microbatch_of(op.name) is None
  return is_of_all and any(
    microbatch_of(t.op.name) is not None for t in op.inputs
  )


def _of_one_batch(graph: tf.Graph) -> dict[str, tf.Operation]:
  """Returns copies of a function's ops, with the shapes of a full batch."""
  graph_def = graph.as_graph_def()
  nodes = [node for node in graph_def.node if node.op != "Placeholder"]
  for node in nodes:
    node.attr.pop("_class", None)
  del graph_def.node[:]
  graph_def.node.extend(nodes)
  names = [node.name for node in nodes]
  with tf.Graph().as_default():
    given = {}
    for op in graph.get_operations():
      if op.type == "Placeholder":
        (tensor,) = op.outputs
        shape = tensor.shape
        if shape.rank and shape[0] is None:
          shape = [_BATCH, *shape[1:]]
        given[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, shape)
        copy_handle_data(tensor, given[tensor.name])
    try:
      found = tf.graph_util.import_graph_def(
        graph_def, given, names, name="copy"
      )
    except ValueError:  # The step does not take batches of this size.
      return {op.name: op for op in graph.get_operations()}
  return dict(zip(names, found, strict=True))


def _leave_out(
  graph: tf.Graph, flow: _Flow, call_of: Mapping[str, tf.Operation]
) -> None:
  """Leaves the ops of units out of what becomes of a function's graph.

  The others are listed in program order. As they are listed, TensorFlow adds
  control edges between those of one variable when the trace ends.
  """
  ops = [
    op
    for op in graph.get_operations()
    if op.name not in call_of
    and not (op.name in flow.copies and flow.is_read_in(op.outputs[0], call_of))
  ]
  number = {op.name: i for i, op in enumerate(ops)}
  before = {
    i: {number[o.name] for o in _before(op)} for i, op in enumerate(ops)
  }
  known = [number.get(call_of.get(op.name, op).name) for op in flow.ops]
  pairs = [(a, b) for b, them in enumerate(flow.before) for a in them]
  for first, second in (*pairs, *flow.later):
    a, b = known[first], known[second]
    if a is not None and b is not None and a != b:
      before[b].add(a)
  listed = [ops[i] for i in _sorted(before)]
  listing = graph.get_operations
  count = len(listing())
  graph.get_operations = lambda: [*listed, *listing()[count:]]


def _before(op: tf.Operation) -> list[tf.Operation]:
  return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def _sorted(before: Mapping[int, Iterable[int]]) -> list[int]:
  """Returns nodes after their predecessors, else by number."""
  sorter = graphlib.TopologicalSorter(before)
  sorter.prepare()
  ready: list[int] = []
  result = []
  while sorter.is_active():
    for node in sorter.get_ready():
      heapq.heappush(ready, node)
    result.append(heapq.heappop(ready))
    sorter.done(result[-1])
  return result


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
  sizes = [(t.shape.num_elements() or 0) * t.dtype.size for t in op.outputs]
  return units.is_inlined(op.type, sum(sizes), len(op.control_inputs))


class _Unit:
  """A unit as a function of the tensors that it reads.

  Attributes:
    ops: its ops, in topological order.
    inputs: tensors from outside, but constants.
    outputs: tensors that are read outside, or wanted.
    reads: positions of variables among the inputs that are only read.
    controls: ops outside that precede its ops.
    function: the `FunctionDef`.
  """

  def __init__(self, flow: _Flow, ops: list[tf.Operation]) -> None:
    self.ops = ops
    self._flow = flow
    names = {op.name for op in ops}
    self.outputs = [
      tensor
      for op in ops
      for tensor in op.outputs
      if tensor.ref() in flow.wanted
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
    self._arguments: dict[Any, int] = {}
    self._writes: set[int] = set()
    self.function = function_pb2.FunctionDef()
    for op in ops:
      self._add(op, names)
    self._sign()

  @property
  def has_effects(self) -> bool:
    """True if anything outside depends on the unit."""
    return bool(self.outputs or self._writes)

  def _add(self, op: tf.Operation, members: set[str]) -> None:
    inputs = [self._input(tensor, members) for tensor in op.inputs]
    local = self._names[op.name] = f"n{len(self._names)}"
    node = self.function.node_def.add(name=local, op=op.type)
    for key, value in op.node_def.attr.items():
      if not key.startswith("_"):
        node.attr[key].CopyFrom(value)
    node.input.extend(inputs)
    earlier = [control.name for control in op.control_inputs]
    earlier += self._flow.earlier.get(op.name, ())
    node.input.extend(
      f"^{self._names[name]}" for name in earlier if name in self._names
    )
    if op.type not in RESOURCE_READ_OPS:
      self._writes.update(
        self._arguments[t.ref()] for t in op.inputs if t.dtype == tf.resource
      )
    if not op.outputs:
      self.function.signature.control_output.append(local)
      self.function.control_ret[local] = local

  def _input(self, tensor: tf.Tensor, members: set[str]) -> str:
    op = tensor.op
    if op.name not in members:
      is_far = op.type == _READ and op.device != self.ops[0].device
      tensor = self._flow.same.get(op.name, tensor) if is_far else tensor
      if is_far or op.name not in self._flow.copies:
        at = self._arguments.setdefault(tensor.ref(), len(self.inputs))
        if at == len(self.inputs):
          self.inputs.append(tensor)
        return f"a{at}"
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
    self.reads = [
      i
      for i, tensor in enumerate(self.inputs)
      if tensor.dtype == tf.resource and i not in self._writes
    ]
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
    if any(tensor.dtype == tf.resource for tensor in unit.inputs):
      node.op = "StatefulPartitionedCall"
      node.attr[READ_ONLY_RESOURCE_INPUTS_ATTR].list.i.extend(unit.reads)
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

"""Rules for loops, branches, calls and the lists that loops write."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.ops import cond_v2, while_v2

from tfplace.variants.microbatches.batch_axis import analysis
from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  RULES,
  Fixed,
  Mixed,
  Mixes,
  OpPair,
  Rows,
  Sized,
  TensorList,
  Value,
  merge,
  rule,
)

_MOST_ROUNDS = 10  # iterations in which a loop's values must converge


@rule("While", "StatelessWhile", sizes=True)
def _while(op: OpPair, inputs: list[Value]) -> list[Value]:
  bodies, conditions = (
    [_loop_graph(one, name) for one in (op.first, op.second)]
    for name in ("body", "cond")
  )
  values = list(inputs)
  for _ in range(_MOST_ROUNDS):
    results = _called(bodies, values, op)
    merged = [_merged(op, a, b) for a, b in zip(values, results, strict=True)]
    if merged == values:
      break
    values = merged
  else:
    raise Mixes("is a loop that could not be followed")
  (goes_on,) = _called(conditions, values, op)
  if isinstance(goes_on, Mixed):
    raise Mixes(f"is a loop in which {goes_on.op!r} {goes_on.why}")
  if goes_on != FIXED:
    raise Mixes("runs until all examples of the batch are done")
  return values


def _loop_graph(loop: tf.Operation, part: str) -> Any:
  if loop.get_attr("output_shapes"):
    return while_v2._get_graph(loop, part, f"_{part}_graph")
  # In an old-style loop (`functional_ops.While`), variables keep their shapes,
  # as TensorFlow's shape function requires.
  return _defun(loop, loop.get_attr(part).name)


def _defun(op: tf.Operation, name: str) -> Any:
  """Builds the graph of an old-style function (`Defun`) for a call's shapes."""
  definition = op.graph._get_function(name).cached_definition
  known = type(definition)()
  known.CopyFrom(definition)
  known.ClearField("arg_attr")  # shapes there would replace the given ones
  shapes = [tensor.shape for tensor in op.inputs]
  with op.graph.as_default():
    return function_def_to_graph.function_def_to_graph(
      known, None, None, shapes
    )


def _merged(op: OpPair, first: Value, second: Value) -> Value:
  try:
    return merge(first, second)
  except Mixes as mixes:
    return Mixed(op.name, op.type, str(mixes))


@rule("If", "StatelessIf", sizes=True)
def _if(op: OpPair, inputs: list[Value]) -> list[Value]:
  if inputs[0] != FIXED:
    raise Mixes("takes a branch that depends on the batch")
  pairs = zip(
    cond_v2.get_func_graphs(op.first),
    cond_v2.get_func_graphs(op.second),
    strict=True,
  )
  first, second = (_called(graphs, inputs[1:], op) for graphs in pairs)
  return [_merged(op, a, b) for a, b in zip(first, second, strict=True)]


@rule(
  "PartitionedCall", "StatefulPartitionedCall", sizes=True, numbers="read"
)  # fmt: skip
def _call(op: OpPair, inputs: list[Value]) -> list[Value]:
  graphs = []
  for one in (op.first, op.second):
    name = one.get_attr("f").name if one.type in RULES else one.type
    function = one.graph._get_function(name)
    graphs.append(getattr(function, "graph", None) or _defun(one, name))
  return _called(graphs, inputs, op)


def _called(
  graphs: Sequence[Any], inputs: Sequence[Value], op: OpPair
) -> list[Value]:
  first, second = graphs
  given = {t.name: v for t, v in zip(first.inputs, inputs, strict=True)}
  values = analysis.follow(first, second, op.sizes, given)
  return [values[tensor.name] for tensor in first.outputs]


@rule("TensorListReserve", "EmptyTensorList", sizes=True)
def _list(op: OpPair, inputs: list[Value]) -> Value:
  if any(not isinstance(value, (Fixed, Sized)) for value in inputs):
    raise Mixes("makes a list whose length depends on the batch")
  if op.type == "TensorListReserve" and inputs[1] != FIXED:
    raise Mixes("makes a list with an entry for each example")
  return TensorList()


@rule("TensorListFromTensor", sizes=True)
def _unstacked(op: OpPair, inputs: list[Value]) -> Value:
  rows = inputs[0]
  if isinstance(rows, Fixed):
    return TensorList(FIXED)
  if not isinstance(rows, Rows) or rows.axis == 0:
    raise Mixes("makes a list with an entry for each example")
  return TensorList(rows.plain(rows.axis - 1))


@rule("TensorListSetItem", "TensorListPushBack")
def _set_item(op: OpPair, inputs: list[Value]) -> Value:
  held, item = inputs[0], inputs[-1]
  if op.type == "TensorListSetItem":
    held, index, item = inputs[:3]
    if index != FIXED:
      raise Mixes("writes an entry whose number depends on the batch")
  return merge(_as_list(held), TensorList(item))


@rule(
  *("TensorListGetItem", "TensorListGather"),
  *("TensorListStack", "TensorListConcatV2"),
  sizes=True,
)
def _get_item(op: OpPair, inputs: list[Value]) -> Value | list[Value]:
  element = _as_list(inputs[0]).element
  if op.type == "TensorListConcatV2":
    if not isinstance(element, Rows) or element.axis == 0:
      raise Mixes("joins lists of examples")
    return [element, FIXED]
  if op.type in ("TensorListGetItem", "TensorListGather") and (
    inputs[1] != FIXED
  ):
    raise Mixes("reads an entry whose number depends on the batch")
  if element is None:  # never written: all zeros
    raise Mixes("reads a list that nothing is written to")
  if op.type != "TensorListGetItem" and isinstance(element, Rows):
    return element.plain(element.axis + 1)
  return element


@rule("TensorListPopBack")
def _pop_back(op: OpPair, inputs: list[Value]) -> list[Value]:
  held = _as_list(inputs[0])
  if held.element is None:
    raise Mixes("reads a list that nothing is written to")
  return [held, held.element]


@rule("TensorListLength", "TensorListElementShape")
def _length(op: OpPair, inputs: list[Value]) -> Value:
  return FIXED


def _as_list(value: Value) -> TensorList:
  if not isinstance(value, TensorList):
    raise Mixes("is a list that depends on the batch")
  return value

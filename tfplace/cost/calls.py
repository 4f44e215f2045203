"""Costs of ops that call functions: loops, branches and plain calls.

Grappler sees no bodies. A call takes the sum of its ops, a conditional its
slowest branch, and a loop its body times its iterations, if known. An iteration
takes at least the time in which the host launches its ops.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph, tensor_util

from tfplace.cost import estimate, sizes
from tfplace.cost.op_classes import OpClasses, Specs
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_SAME = ("Identity", "StopGradient", "Cast")
# Host time of an op in a loop. Fitted to the 590 us of a time step, forward and
# backward, of an LSTM of 320 units on a GTX 980 Ti (`stefbraun/rnn_benchmarks`,
# TensorFlow 1.2); in its four bidirectional layers, a time step takes 634 us.
# The host of an H200 launches an op of a graph every 6.2 us (docs/findings.md).
_LAUNCH_US = 6.0


@dataclasses.dataclass(frozen=True)
class CallCost:
  """Cost of a call.

  Attributes:
    time_us: device kind or its peak -> microseconds.
    temp_bytes: peak memory of the body.
    num_ops: ops that the host launches, besides those of loops.
    is_exact: False if a loop of unknown length was counted once.
    rejected: op of the body that Grappler rejects -> reason.
  """

  time_us: Mapping[estimate.Timed, float]
  temp_bytes: float
  num_ops: int
  is_exact: bool
  rejected: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def repeated(self, times: int | None) -> "CallCost":
    """Returns the cost of `times` iterations; None is one inexact iteration."""
    launch_us = _LAUNCH_US * self.num_ops
    time_us = {
      kind: max(us, launch_us if isinstance(kind, str) else 0.0) * (times or 1)
      for kind, us in self.time_us.items()
    }
    is_exact = self.is_exact and times is not None
    return dataclasses.replace(
      self, time_us=time_us, num_ops=0, is_exact=is_exact
    )


class Body(NamedTuple):
  """Body of a function for inputs of given shapes.

  Attributes:
    graph_def: graph that is flat except for calls, with their library.
    graph: the same, imported.
    inputs: a placeholder or variable handle per argument.
    outputs: results of the function.
  """

  graph_def: tf.compat.v1.GraphDef
  graph: tf.Graph
  inputs: tuple[tf.Tensor, ...]
  outputs: tuple[tf.Tensor, ...]


class CallCosts:
  """Estimates the calls of one graph, including nested calls."""

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    op_times: estimate.OpTimer,
  ) -> None:
    self._functions = {f.signature.name: f for f in graph_def.library.function}
    self._op_times = op_times
    self._bodies: dict[Any, tuple[Body, CallCost]] = {}
    self._calling: list[str] = []

  def of_graph(
    self,
    graph: tf.Graph,
    repeated: Mapping[str, str] = MappingProxyType({}),
  ) -> dict[str, CallCost]:
    """Maps the names of ops that call functions to their costs.

    Args:
      repeated: op -> another op of the same cost.

    Raises:
      ExtractionError: a function is missing, calls itself or is rejected.
    """
    if not self._functions:
      return {}
    costs = {
      op.name: self._of_op(op, names)
      for op in graph.get_operations()
      if op.name not in repeated and (names := self._called(op))
    }
    same = {op: costs[its] for op, its in repeated.items() if its in costs}
    return {**costs, **same}

  def _called(self, op: tf.Operation) -> list[str]:
    names = nodes.called_functions(op.node_def)
    return [name for name in names if name in self._functions]

  def _of_op(self, op: tf.Operation, names: list[str]) -> CallCost:
    costs = [self._of_function(op, name)[1] for name in names]
    if op.type in _BRANCHES:
      return _combined(costs, max)
    total = _combined(costs, sum)
    if op.type in _LOOPS:
      return total.repeated(trip_count(op, self._condition))
    return total

  def _condition(self, loop: tf.Operation) -> Body:
    return self._of_function(loop, loop.node_def.attr["cond"].func.name)[0]

  def _of_function(
    self, call: tf.Operation, name: str
  ) -> tuple[Body, CallCost]:
    key = id(call.graph), call.name, name
    if key not in self._bodies:
      if name in self._calling:
        raise ExtractionError(
          f"op {call.name!r} calls function {name!r}, which calls itself",
          op=call.name,
        )
      self._calling.append(name)
      body = self._body(call, name)
      self._bodies[key] = body, self._of_body(body)
      self._calling.pop()
    return self._bodies[key]

  def _body(self, call: tf.Operation, name: str) -> Body:
    function = self._functions[name]
    arguments = list(call.inputs)[call.type in _BRANCHES :]
    fits = len(arguments) == len(function.signature.input_arg)
    return function_body(function, arguments if fits else None, self._functions)

  def _of_body(self, body: Body) -> CallCost:
    calls = self.of_graph(body.graph)
    specs = sizes.output_specs(body.graph, check_placeholders=False)
    classes = OpClasses(body.graph_def, body.graph, specs)
    op_times = self._op_times(classes)
    total = {
      kind: sum(
        calls[op.name].time_us[kind]
        if op.name in calls
        else times.get(op.name, 0.0)
        for op in body.graph.get_operations()
      )
      for kind, times in op_times.time_us.items()
    }
    num_ops = len(classes.of_op) + sum(c.num_ops for c in calls.values())
    exact = all(call.is_exact for call in calls.values())
    rejected = {**op_times.rejected, **rejected_in(calls.values())}
    peak = _peak_bytes(body.graph, specs, calls)
    return CallCost(total, peak, num_ops, exact, rejected)


def _combined(costs: list[CallCost], combine: Any) -> CallCost:
  kinds = costs[0].time_us
  return CallCost(
    {kind: combine(cost.time_us[kind] for cost in costs) for kind in kinds},
    max(cost.temp_bytes for cost in costs),
    combine(cost.num_ops for cost in costs),
    all(cost.is_exact for cost in costs),
    rejected_in(costs),
  )


def rejected_in(costs: Iterable[CallCost]) -> dict[str, str]:
  """Maps rejected ops in the bodies of the calls to reasons."""
  return {op: why for cost in costs for op, why in cost.rejected.items()}


def _peak_bytes(
  body: tf.Graph, specs: Specs, calls: Mapping[str, CallCost]
) -> float:
  """Returns the peak bytes in the order of ops, without the inputs."""
  ops = [op for op in body.get_operations() if op.type != "Placeholder"]
  last = {t.ref(): op for op in ops for t in op.inputs}
  alive = peak = 0.0
  for op in ops:
    alive += sum(spec.num_bytes for spec in specs[op.name])
    inner = calls[op.name].temp_bytes if op.name in calls else 0.0
    peak = max(peak, alive + inner)
    alive -= _freed_bytes(op, last, specs)
  return peak


def _freed_bytes(
  op: tf.Operation, last: Mapping[Any, tf.Operation], specs: Specs
) -> float:
  """Returns the bytes that no later op reads, including outputs."""
  read: Iterable[tf.Tensor] = {t.ref(): t for t in op.inputs}.values()
  freed = sum(
    specs[t.op.name][t.value_index].num_bytes
    for t in read
    if last[t.ref()] is op and t.op.type != "Placeholder"
  )
  unread = (t for t in op.outputs if t.ref() not in last)
  return freed + sum(specs[op.name][t.value_index].num_bytes for t in unread)


def function_body(
  function: Any,
  arguments: Sequence[tf.Tensor] | None,
  functions: Mapping[str, Any],
) -> Body:
  """Instantiates a `FunctionDef`.

  Args:
    arguments: arguments of the call; None uses the types of the signature.
    functions: name -> `FunctionDef` of the functions that it may call.

  Raises:
    ExtractionError: TensorFlow rejects the function.
  """
  name = function.signature.name
  try:
    graph_def, flat_names = _flat(function, functions)
  except Exception as error:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(
      f"TensorFlow rejects function {name!r}: {first}"
    ) from error
  for node, argument in zip(graph_def.node, arguments or (), strict=False):
    _pass(argument, node)
  graph_def = sizes.with_known_shapes(graph_def)
  graph = sizes.import_step(graph_def, name)
  inputs = [f"{arg.name}:0" for arg in function.signature.input_arg]
  outputs = [
    flat_names[function.ret[arg.name]] for arg in function.signature.output_arg
  ]
  return Body(
    graph_def,
    graph,
    tuple(graph.get_tensor_by_name(tensor) for tensor in inputs),
    tuple(graph.get_tensor_by_name(tensor) for tensor in outputs),
  )


def _flat(
  function: Any, functions: Mapping[str, Any]
) -> tuple[tf.compat.v1.GraphDef, dict[str, str]]:
  # With the whole library in every body, a graph of many loops would take
  # quadratic time.
  reached = nodes.reached_functions(function.node_def, functions)
  library = tf.compat.v1.GraphDef()
  library.library.function.extend(reached)
  known = tf.Graph()
  with known.as_default():
    tf.graph_util.import_graph_def(library, name="")
    graph_def, names = function_def_to_graph.function_def_to_graph_def(function)
  graph_def.library.CopyFrom(library.library)
  return graph_def, names


def _pass(argument: tf.Tensor, node: tf.compat.v1.NodeDef) -> None:
  """Gives a parameter's placeholder the shape or variable of the argument."""
  while argument.dtype == tf.resource and argument.op.type in sizes.HANDING_ON:
    argument = argument.op.inputs[argument.value_index]
  producer = argument.op
  name = node.name
  if producer.type == "VarHandleOp":
    node.CopyFrom(producer.node_def)
    node.name = name
    node.device = ""
  elif argument.dtype != tf.resource:
    node.attr["shape"].shape.CopyFrom(argument.shape.as_proto())


Conditions: TypeAlias = Callable[[tf.Operation], Body]  # of a loop


def trip_count(loop: tf.Operation, condition_of: Conditions) -> int | None:
  """Returns the iterations of a loop that counts to a static limit, or None.

  Assumes that the loop counts by one and does not end early. Of several limits
  joined by "and", the smallest counts.
  """
  condition = condition_of(loop)

  def value(tensor: tf.Tensor) -> float | None:
    tensor = _source(tensor)
    for position, argument in enumerate(condition.inputs):
      if argument is tensor:
        return _value(loop.inputs[position], condition_of)
    return _value(tensor, condition_of)

  counts = []
  for compare in _comparisons(condition.outputs[0]):
    start, limit = (value(tensor) for tensor in compare.inputs)
    if start is not None and limit is not None:
      inclusive = compare.type == "LessEqual"
      counts.append(max(0, int(np.ceil(limit - start)) + inclusive))
  return min(counts, default=None)


def _comparisons(tensor: tf.Tensor) -> Iterator[tf.Operation]:
  op = tensor.op
  if op.type in ("Less", "LessEqual"):
    yield op
  elif op.type == "LogicalAnd" or op.type in _SAME:
    for value in op.inputs:
      yield from _comparisons(value)


def _value(tensor: tf.Tensor, condition_of: Conditions) -> float | None:
  """Returns a scalar that is static or the counter of another loop."""
  tensor = _source(tensor)
  value = tensor_util.constant_value(tensor)
  if value is not None:
    return float(value) if np.size(value) == 1 else None
  # The first loop variable is a counter from 0, and the loop of a gradient runs
  # as often as that of the forward pass.
  if tensor.op.type in _LOOPS and tensor.value_index == 0:
    return trip_count(tensor.op, condition_of)
  return None


def _source(tensor: tf.Tensor) -> tf.Tensor:
  while tensor.op.type in _SAME:
    tensor = tensor.op.inputs[0]
  return tensor

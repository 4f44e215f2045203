"""Costs of ops that call functions: loops, branches and plain calls.

Grappler sees one op and no body, so the body is estimated as a graph of its
own: a call takes the sum of its body's ops, a branch its slowest branch, a
loop its body times the number of iterations where that can be told. Launching
the ops of a body is not counted; the call is one op.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.cost import bodies, estimate, sizes
from tfplace.errors import ExtractionError
from tfplace.extraction import nodes

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")


@dataclasses.dataclass(frozen=True)
class CallCost:
  """What a call costs.

  Attributes:
    time_us: device kind -> microseconds.
    temp_bytes: most memory that its body holds at once.
    is_sure: False where some loop's number of iterations is unknown and it
      was counted once.
  """

  time_us: Mapping[str, float]
  temp_bytes: float
  is_sure: bool

  def scaled(self, times: int | None) -> "CallCost":
    """That many runs, one after the other; None is one, and not sure."""
    scaled = {kind: t * (times or 1) for kind, t in self.time_us.items()}
    return CallCost(scaled, self.temp_bytes, self.is_sure and times is not None)


class CallCosts:
  """Estimates the calls of one graph, its functions' own calls included."""

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    hardware: Mapping[str, DeviceProperties],
  ) -> None:
    self._functions = {f.signature.name: f for f in graph_def.library.function}
    self._hardware = hardware
    self._bodies: dict[Any, tuple[bodies.Body, CallCost]] = {}
    self._calling: list[str] = []

  def of_graph(self, graph: tf.Graph) -> dict[str, CallCost]:
    """Op name -> cost of each op of `graph` that calls functions.

    Raises:
      ExtractionError: a function is missing, calls itself or is rejected.
    """
    if not self._functions:
      return {}
    return {
      op.name: self._of_op(op, names)
      for op in graph.get_operations()
      if (names := self._called(op))
    }

  def _called(self, op: tf.Operation) -> list[str]:
    names = nodes.called_functions(op.node_def)
    return [name for name in names if name in self._functions]

  def _of_op(self, op: tf.Operation, names: list[str]) -> CallCost:
    costs = [self._of_function(op, name)[1] for name in names]
    if op.type in _BRANCHES:
      return _combined(costs, max)
    total = _combined(costs, sum)
    if op.type in _LOOPS:
      return total.scaled(bodies.trip_count(op, self._condition))
    return total

  def _condition(self, loop: tf.Operation) -> bodies.Body:
    return self._of_function(loop, loop.node_def.attr["cond"].func.name)[0]

  def _of_function(
    self, call: tf.Operation, name: str
  ) -> tuple[bodies.Body, CallCost]:
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

  def _body(self, call: tf.Operation, name: str) -> bodies.Body:
    function = self._functions[name]
    arguments = list(call.inputs)[call.type in _BRANCHES :]
    fits = len(arguments) == len(function.signature.input_arg)
    return bodies.function_body(
      function, arguments if fits else None, self._functions
    )

  def _of_body(self, body: bodies.Body) -> CallCost:
    calls = self.of_graph(body.graph)
    specs = sizes.output_specs(body.graph, check_placeholders=False)
    times = estimate.times_us(body.graph_def, body.graph, specs, self._hardware)
    total = {
      kind: sum(
        calls[op.name].time_us[kind]
        if op.name in calls
        else times[kind].get(op.name, 0.0)
        for op in body.graph.get_operations()
      )
      for kind in times
    }
    sure = all(call.is_sure for call in calls.values())
    return CallCost(total, _peak_bytes(body.graph, specs, calls), sure)


def _combined(costs: list[CallCost], combine: Any) -> CallCost:
  kinds = costs[0].time_us
  return CallCost(
    {kind: combine(cost.time_us[kind] for cost in costs) for kind in kinds},
    max(cost.temp_bytes for cost in costs),
    all(cost.is_sure for cost in costs),
  )


def _peak_bytes(
  body: tf.Graph, specs: estimate.Specs, calls: Mapping[str, CallCost]
) -> float:
  """Most bytes alive at once when the ops run in their order.

  The body's inputs belong to the caller and are not counted.
  """
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
  op: tf.Operation,
  last: Mapping[Any, tf.Operation],
  specs: Mapping[str, tuple[sizes.TensorSpec, ...]],
) -> float:
  """Bytes that nobody reads after the op; the body's outputs as well."""
  read: Iterable[tf.Tensor] = {t.ref(): t for t in op.inputs}.values()
  freed = sum(
    specs[t.op.name][t.value_index].num_bytes
    for t in read
    if last[t.ref()] is op and t.op.type != "Placeholder"
  )
  unread = (t for t in op.outputs if t.ref() not in last)
  return freed + sum(specs[op.name][t.value_index].num_bytes for t in unread)

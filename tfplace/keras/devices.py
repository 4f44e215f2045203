"""Devices that a plan gives to the ops and variables of a model.

`DeviceFunction` tells TensorFlow the device of each op while a graph is traced.
The graph that `fit` traces differs slightly from the planned graph. An op that
the plan lacks therefore takes its device from its surroundings. An op on a
variable must run on the variable's device, so the planned devices of such ops
determine the device of the variable. This module moves no variables.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from tfplace.extraction.layers import open_layers
from tfplace.graph.microbatches import is_template, microbatch_of, name_in_whole
from tfplace.graph.op_names import GRADIENT_SCOPE, with_scopes
from tfplace.graph.recompute import SCOPE, original_name
from tfplace.keras import state
from tfplace.plan.plan import Plan

# The bodies of these ops have their own devices and may take resources on
# several devices, so a resource does not determine the device of the call.
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
LOOPS_AND_CALLS = _CALLS | {
  *("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
}


class DeviceFunction:
  """Device function that places each op of a graph during its trace.

  The first rule that applies determines the device of an op:

  1. An op on a resource runs on the device of the resource. TensorFlow rejects
     any other device.
  2. The plan names a device for an op of this name and type.
  3. The plan names a device for the layer that is being called. For an op of a
     microbatch, the layer is the one called while the copied graph was traced.
  4. The user opened a `tf.device` scope.
  5. A gradient op runs on the device of its forward op.
  6. The op runs on the device of its first placed input.

  If no rule applies, the op gets no device. Inside the body of a loop it then
  runs on the device of the loop.

  Use one instance per trace of a function and its nested graphs.

  Attributes:
    plan: the plan.
    planned: names of the ops so far that the plan named.
  """

  def __init__(self, plan: Plan) -> None:
    self.plan = plan
    self._placed: dict[str, str] = {}  # op name -> device, over all graphs
    self._copied: dict[str, str] = {}  # the same, of what microbatches copy
    self._outer: dict[int, tuple[Any, Any]] = {}  # inner id -> (inner, outer)
    self.planned: set[str] = set()

  def __call__(self, op: tf.Operation) -> str:
    """Returns the device of `op` or "", as `tf.Graph.device` requires."""
    if is_template(op.graph):
      # The template never runs. Functions that its ops call run on the devices
      # of these ops.
      self._copied[op.name] = self._layer_device() or op.device
      return op.device
    device = self._decide(op)
    if device:
      self._placed[op.name] = device
    return device

  def place_reads(self, graph: tf.Graph) -> None:
    """Sets the devices of reads of variables, for which nobody asks."""
    for op in graph.get_operations():
      if op.type == "ReadVariableOp" and not op.device:
        op._set_device(self._resource_device(op) or "")

  def _decide(self, op: tf.Operation) -> str:
    resource = None if op.type in _CALLS else self._resource_device(op)
    planned = self.plan.device_of_op(op.name, op.type) or self._layer_device()
    if microbatch_of(op.name) is not None:
      copied = self._copied.get(name_in_whole(op.name))
      planned = planned or copied or None
    if planned is not None:
      self.planned.add(op.name)
    return (
      resource
      or planned
      or op.device
      or self._forward_device(op.name)
      or self._input_device(op)
      or ""
    )

  def _layer_device(self) -> str | None:
    layers = self.plan.layer_devices
    if not layers:
      return None
    return next((layers[n] for n in open_layers() if n in layers), None)

  def _forward_device(self, name: str) -> str | None:
    """Returns the device of a/MatMul for its gradients and its clone."""
    original = original_name(name)
    _, separator, forward = original.rpartition(GRADIENT_SCOPE)
    microbatch = name.removesuffix(name_in_whole(name))
    if original != name:
      separator, forward = SCOPE, name_in_whole(original)
    for scope in with_scopes(forward) if separator else ():
      same = microbatch + scope
      device = self.plan.ops.get(same) or self._placed.get(same)
      if device:
        return device
    return None

  def _input_device(self, op: tf.Operation) -> str | None:
    for tensor in op.inputs:
      source = self._source(tensor)
      device = getattr(source, "device", None)
      if not device and hasattr(source, "op"):
        # TensorFlow leaves the devices of variable reads unset.
        device = self._resource_device(source.op)
      if device:
        return device
    return None

  def _resource_device(self, op: tf.Operation) -> str | None:
    for tensor in op.inputs:
      if tensor.dtype == tf.resource:
        source = self._source(tensor)
        if isinstance(source, tf.__internal__.EagerTensor):
          return source.device
    return None

  def _source(self, tensor: Any) -> Any:
    """Follows a captured `tensor` to its source in the outermost graph."""
    eager = tf.__internal__.EagerTensor
    while not isinstance(tensor, eager) and tensor.op.type == "Placeholder":
      outer = self._captured(tensor)
      if outer is None:
        break
      tensor = outer
    return tensor

  def _captured(self, tensor: Any) -> Any:
    if id(tensor) not in self._outer:
      for outer, inner in getattr(tensor.graph, "captures", ()):
        self._outer[id(inner)] = inner, outer
      self._outer.setdefault(id(tensor), (tensor, None))
    return self._outer[id(tensor)][1]


@contextlib.contextmanager
def gradients_recorded() -> Iterator[None]:
  """Lets the gradient tapes of this thread record inside `tf.init_scope`.

  `tf.init_scope` stops gradient tapes. A training step that is traced there,
  for example during a fit, would have no gradients.
  """
  if not pywrap_tfe.TFE_Py_TapeSetIsStopped():
    yield
    return
  pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
  try:
    yield
  finally:
    pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def place_rest_of_trace(device_function: Callable[[tf.Operation], str]) -> None:
  """Places the remaining ops of all functions that are being traced.

  Adds the device function to the innermost function graph and to all graphs
  around it. The device function goes below any open `tf.device` scope, so it
  stays in force until the trace ends.
  """
  graph: Any = tf.compat.v1.get_default_graph()
  while hasattr(graph, "outer_graph"):  # a function's graph
    stack = graph._device_function_stack
    if not any(
      spec.function.__class__ is device_function.__class__
      for spec in stack.peek_objs()
    ):
      graph._add_device_to_stack(device_function)
      stack._stack.insert(0, stack._stack.pop())
    graph = graph.outer_graph


@contextlib.contextmanager
def on_each_call(model: Any, action: Callable[[], None]) -> Iterator[None]:
  """Runs `action` before each traced call of `model`."""
  call = model.call

  def acting(*args: Any, **kwargs: Any) -> Any:
    if not tf.executing_eagerly():
      action()
    return call(*args, **kwargs)

  before = vars(model).get("call")
  vars(model)["call"] = acting  # past Keras' attribute tracking
  try:
    yield
  finally:
    if before is None:
      del vars(model)["call"]
    else:
      vars(model)["call"] = before


def variable_devices(
  model: keras.Model,
  plan: Plan,
  trace: Callable[[], Any] | None = None,
) -> dict[int, str]:
  """Returns the devices that a plan gives to variables.

  The plan names the layer of a variable, or its path, which is the name of the
  variable's handle in an extracted graph. If it names ops and some variables
  have no device, the step is traced once: such a variable gets the device of
  the first planned op that uses it, loops and calls last. An optimizer slot
  that the plan does not name gets the device of its variable.

  Args:
    model: the model that owns the variables.
    plan: the plan.
    trace: traces the model's own step; None leaves out what requires it.

  Returns:
    Full device name by `id` of the variable.
  """
  result = state.layer_devices(model, plan.layer_devices)
  variables = state.variables(model)
  count = collections.Counter(variable.path for variable in variables)
  for variable in variables:
    device = plan.device_of_op(variable.path, "VarHandleOp")
    if device is not None and count[variable.path] == 1:
      result[id(variable)] = device
  slots = list(state.slots(model))
  result |= _of_slots(result, slots)
  is_partial = any(id(v) not in result for v in model.variables)
  if trace is not None and plan.ops and is_partial:
    keys = {state.handle_key(v): id(v) for v in variables}
    for key, device in _of_resources(plan, trace().graph).items():
      if key in keys:
        result.setdefault(keys[key], device)
    result |= _of_slots(result, slots)
  return result


def _of_slots(
  devices: dict[int, str], slots: list[tuple[keras.Variable, Any]]
) -> dict[int, str]:
  return {
    id(slot): devices[id(owner)]
    for slot, owner in slots
    if id(owner) in devices and id(slot) not in devices
  }


def _of_resources(plan: Plan, graph: Any) -> dict[int, str]:
  """Returns the device planned for the first op on each captured resource."""
  outer = {id(inner): id(source) for source, inner in graph.captures}
  devices: dict[int, str] = {}
  ops = sorted(
    graph.get_operations(), key=lambda op: op.type in LOOPS_AND_CALLS
  )
  for op in ops:
    device = plan.device_of_op(op.name, op.type)
    if device is None:
      continue
    for tensor in op.inputs:
      if tensor.dtype == tf.resource and id(tensor) in outer:
        devices.setdefault(outer[id(tensor)], device)
  return devices

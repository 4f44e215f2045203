"""Which device each op and each variable of a model goes on, by a plan.

`DeviceFunction` tells TensorFlow the device of each op as a graph is traced.
The graph that `fit` traces is not quite the one that was planned on, so an op
that the plan lacks takes its place from what is around it. An op on a variable
must be where the variable is, so the devices planned for such ops say where
the variable goes. Nothing is moved here.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from tfplace.errors import ApplyError
from tfplace.extraction import microbatches
from tfplace.extraction.layers import open_layers
from tfplace.keras import state
from tfplace.plan.plan import Plan, choices

_GRADIENT_SCOPE = "gradient_tape/"
# Their bodies carry devices of their own, and they may take resources of
# several devices: a resource does not decide where they are.
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
LOOPS_AND_CALLS = frozenset(
  {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
  | {"PartitionedCall", "StatefulPartitionedCall"}
)


class DeviceFunction:
  """Names the device of each op of a graph as it is traced.

  In this order: an op on a resource is where the resource is (anything else
  fails); the plan's device for an op of this name and type; the planned device
  of the layer that is being called (or was, as the graph was traced of which a
  microbatch is a copy); what the user's own `tf.device` says; of a
  gradient, its forward op's device; its first placed input's. Else the op
  stays without: inside a loop's body it then runs where the loop does.

  Use one instance per trace of a function and its nested graphs.
  """

  def __init__(self, plan: Plan) -> None:
    self._plan = plan
    self._placed: dict[str, str] = {}  # op name -> device, over all graphs
    self._copied: dict[str, str] = {}  # the same, of what microbatches copy
    self._outer: dict[int, tuple[Any, Any]] = {}  # inner id -> (inner, outer)
    self.planned: set[str] = set()  # ops that the plan named

  def __call__(self, op: tf.Operation) -> str:
    """The device of `op`, "" for none: called by `tf.Graph.device`."""
    if microbatches.is_template(op.graph):
      # It never runs; what its ops call runs where they do.
      self._copied[op.name] = self._layer_device() or op.device
      return op.device
    device = self._decide(op)
    if device:
      self._placed[op.name] = device
    return device

  def _decide(self, op: tf.Operation) -> str:
    resource = None if op.type in _CALLS else self._resource_device(op)
    planned = self._plan.device_of_op(op.name, op.type) or self._layer_device()
    if microbatches.microbatch_of(op.name) is not None:
      copied = self._copied.get(microbatches.name_in_whole(op.name))
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
    if not self._plan.layers:
      return None
    for name in open_layers():
      if name in self._plan.layers:
        return self._plan.layers[name]
    return None

  def _forward_device(self, name: str) -> str | None:
    """Of gradient_tape/a/MatMul/Mul_1: that of a/MatMul."""
    _, found, forward = name.rpartition(_GRADIENT_SCOPE)
    microbatch = name.removesuffix(microbatches.name_in_whole(name))
    while found and forward:
      same = microbatch + forward
      device = self._plan.ops.get(same) or self._placed.get(same)
      if device:
        return device
      forward = forward.rpartition("/")[0]
    return None

  def _input_device(self, op: tf.Operation) -> str | None:
    for tensor in op.inputs:
      source = self._source(tensor)
      device = getattr(source, "device", None) or self._read_device(source)
      if device:
        return device
    return None

  def _read_device(self, tensor: Any) -> str | None:
    """TensorFlow itself leaves reads of variables without a device."""
    op = getattr(tensor, "op", None)
    return None if op is None else self._resource_device(op)

  def _resource_device(self, op: tf.Operation) -> str | None:
    for tensor in op.inputs:
      if tensor.dtype == tf.resource:
        source = self._source(tensor)
        if isinstance(source, tf.__internal__.EagerTensor):
          return source.device
    return None

  def _source(self, tensor: Any) -> Any:
    """What a captured `tensor` stands for outside, out to the outermost."""
    while not isinstance(tensor, tf.__internal__.EagerTensor):
      if tensor.op.type != "Placeholder":
        return tensor
      outer = self._captured(tensor)
      if outer is None:
        return tensor
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
  """Inside, gradient tapes of this thread record again.

  `tf.init_scope` stops them, and a training step traced there, as in the middle
  of a fit, would have no gradients.
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
  """Places all that the functions now being traced will still create.

  The innermost function and those around it get the device function below
  whatever `tf.device` is open, so that it ends with their trace.
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
  """Inside, `action` runs before each call of `model` that is traced."""
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


def named_devices(model: keras.Model, plan: Plan) -> dict[int, str]:
  """`id` of each variable that the plan places by name -> full device name.

  By the name of its layer, or by its path, which is the name of its handle in
  an extracted graph; a slot goes with the variable whose slot it is.
  """
  found = _from_layers(model, plan)
  variables = state.variables(model)
  count = collections.Counter(variable.path for variable in variables)
  for variable in variables:
    device = plan.device_of_op(variable.path, "VarHandleOp")
    if device is not None and count[variable.path] == 1:
      found[id(variable)] = device
  return _with_slots(model, found)


def traced_devices(
  model: keras.Model, plan: Plan, step: Callable[..., Any], data: Any
) -> dict[int, str]:
  """As `named_devices`, and by the ops of a trace, for plans without handles.

  `step` is the model's own, traced on `data` once, only to look.
  """
  found = named_devices(model, plan)
  if plan.ops and any(id(v) not in found for v in model.variables):
    for key, device in _from_ops(model, plan, step, data).items():
      found.setdefault(key, device)
  return _with_slots(model, found)


def _with_slots(model: keras.Model, found: dict[int, str]) -> dict[int, str]:
  for slot, owner in state.slots(model):
    if id(owner) in found:
      found.setdefault(id(slot), found[id(owner)])
  return found


def _from_layers(model: keras.Model, plan: Plan) -> dict[int, str]:
  if not plan.layers:
    return {}
  return state.layer_devices(model, plan.layers)


def _from_ops(
  model: keras.Model, plan: Plan, step: Callable[..., Any], data: Any
) -> dict[int, str]:
  """By the devices planned for the ops that use each variable."""
  traced = state.traced(step, data)
  outer = {id(inner): source for source, inner in traced.graph.captures}
  votes: dict[int, str] = {}
  ops = sorted(
    traced.graph.get_operations(), key=lambda op: op.type in LOOPS_AND_CALLS
  )
  for op in ops:
    device = plan.device_of_op(op.name, op.type)
    if device is None:
      continue
    for tensor in op.inputs:
      if tensor.dtype == tf.resource and id(tensor) in outer:
        votes.setdefault(id(outer[id(tensor)]), device)
  keys = {state.handle_key(v): v for v in state.variables(model)}
  return {id(keys[key]): device for key, device in votes.items() if key in keys}


def check_layers(plan: Plan, model: keras.Model) -> None:
  """Refuses a plan of layers that a model, once built, lacks.

  Raises:
    ApplyError: names the first, and the layers that may have been meant.
  """
  known = state.layer_names(model)
  for name, device in plan.layers.items():
    if name not in known:
      raise ApplyError(
        f"the placement names {name!r}, which is no layer of model"
        f" {model.name!r}; {choices(name, known)} (Keras numbers"
        " layers without a name of their own through a whole process)",
        op=name,
        device=device,
      )

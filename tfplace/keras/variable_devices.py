"""Which device each variable of a model belongs on, by a plan.

An op on a variable must be where the variable is, so the devices planned for
those ops say where the variable goes. It moves nothing.
"""

import collections
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfplace.keras import state
from tfplace.plan.plan import Plan

LOOPS_AND_CALLS = frozenset(
  {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
  | {"PartitionedCall", "StatefulPartitionedCall"}
)


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

  Args:
    model: built; its variables are still where they were.
    plan: what to follow.
    step: the model's unplaced step function; traced once, only to look.
    data: one batch for `step`; tensors of any graph, or specs.
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

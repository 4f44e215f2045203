"""Units of a placed step: compiles them while the step is traced."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import keras
import tensorflow as tf

from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.op_graph import XLA
from tfplace.keras import state
from tfplace.keras.devices import DeviceFunction
from tfplace.plan.plan import Plan
from tfplace.variants import op_order
from tfplace.variants.units import calls as unit_calls
from tfplace.variants.units import forming, lowering


def compiles(plan: Plan, wants_jit: bool) -> bool:
  """Returns whether XLA compiles units of placed steps.

  Args:
    plan: plan of the step.
    wants_jit: whether XLA compiles the unplaced step.
  """
  return wants_jit if plan.compile == AUTO else plan.compile == XLA


def compile_units(
  result: Any,
  device_function: DeviceFunction,
  model: keras.Model,
  plan: Plan,
  wants_jit: bool,
) -> tuple[Any, dict[tf.Operation, list[tf.Operation]], str]:
  """Compiles the units of the step in the current graph.

  Args:
    result: nested tensors that the step returns.
    device_function: device function of the graph.
    model: the placed model.
    plan: plan of the step.
    wants_jit: whether XLA compiles the unplaced step.

  Returns:
    The result, as the compiled units compute it; the ops of each call; and a
    note on ops that XLA refuses, or "".
  """
  graph = tf.compat.v1.get_default_graph()
  layers = state.layer_names(model)
  device_function.place_reads(graph)
  flat = keras.tree.flatten(result)
  tensors = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
  calls, tensors, refused = unit_calls.compile_units(
    graph,
    _unit_of(layers, plan, wants_jit),
    results=tensors,
    later=op_order.program_order(graph.get_operations()),
    turn_of=plan.turns.get,
    batch_size=plan.batch_size or DEFAULT_BATCH_SIZE,
  )
  note = ""
  if refused:
    layer_of = functools.partial(forming.layer_by_name, layers=layers)
    note = lowering.refusal_note(refused, layer_of)
  new = iter(tensors)
  result = keras.tree.pack_sequence_as(
    result,
    [next(new) if isinstance(leaf, tf.Tensor) else leaf for leaf in flat],
  )
  return result, calls, note


def _unit_of(
  layers: set[str], plan: Plan, wants_jit: bool
) -> Callable[[tf.Operation], Hashable | None]:
  """Returns a function to the unit of an op, as planned or by names.

  XLA draws other random numbers than TensorFlow, so it draws them only where it
  does so for the unplaced step.
  """

  def unit_of(op: tf.Operation) -> Hashable | None:
    if forming.is_random(op.type) and not wants_jit:
      return None
    if plan.units:
      return plan.unit_of_op(op.name)
    return forming.key_by_name(op.name, layers)

  return unit_of

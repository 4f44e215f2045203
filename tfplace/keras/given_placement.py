"""Placements that users give: a plan, its file or plain data.

A given placement must name devices of this process and layers of the model.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfplace.errors import ApplyError
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.microbatches import VariantConfig, microbatches_of
from tfplace.graph.order import ARRIVAL
from tfplace.graph.placement import Placement
from tfplace.keras import state
from tfplace.keras.devices import LOOPS_AND_CALLS, DeviceFunction
from tfplace.plan import local_devices
from tfplace.plan.config import PlanConfig
from tfplace.plan.plan import GIVEN, Plan

PlanLike: TypeAlias = (
  Plan | Placement | Mapping[str, Any] | str | os.PathLike[str]
)


def read_plan(placement: PlanLike) -> Plan:
  """Reads a placement in any supported form, without checking its names.

  Args:
    placement: a `Plan` or `Placement`, the path or content of a placement file,
      or a mapping from op or layer names to device names (short names such as
      "CPU:1" are allowed).

  Raises:
    FormatError: the file is not a placement file.
    ApplyError: the placement is empty, or of no supported form.
  """
  if isinstance(placement, Plan):
    return placement
  if isinstance(placement, Placement):
    return Plan.from_placement(placement)
  if isinstance(placement, str | os.PathLike):
    return Plan.load(placement)
  is_mapping = isinstance(placement, Mapping) and bool(placement)
  if not is_mapping or not all(isinstance(name, str) for name in placement):
    raise ApplyError(
      "a placement is a Plan, the path of a placement file, or a mapping of op"
      f" or layer names to device names, not {placement!r:.60}"
    )
  if "assignments" in placement:  # The content of a placement file.
    return Plan.from_json(placement)
  variant = microbatches_of(placement)
  return Plan("", GIVEN, placement, compile=AUTO, variant=variant)


def start_of(plan: Plan) -> dict[str, str]:
  """Returns device names by op and by unit, from which a search starts."""
  return {**plan.assignments, **plan.unit_devices}


def given_plan(
  placement: PlanLike, model: keras.Model, config: PlanConfig
) -> Plan:
  """Returns the plan of a given placement, with the names of a model.

  Args:
    placement: placement in any form that `read_plan` accepts.
    model: model to place.
    config: request, whose variant is used if the plan has none. Its `compile`
      "auto" does what the plan or Keras does.

  Raises:
    FormatError: the file is not a placement file.
    ApplyError: the plan is for other microbatches or lacks the order of its
      ops, this process lacks a device, or the model lacks a layer.
  """
  plan = read_plan(placement)
  if plan.order != ARRIVAL and not plan.op_order:
    raise ApplyError(
      f"the placement has order {plan.order!r} without op_order, the names of"
      " the ops in the order in which devices run them: save a plan again, or"
      " give what plan_model returned"
    )
  variant = _joined(plan.variant, config.variant)
  compiled = plan.compile if config.compile == AUTO else config.compile
  if (variant, compiled) != (plan.variant, plan.compile):
    plan = dataclasses.replace(plan, variant=variant, compile=compiled)
  if stays(plan):
    return plan
  if not isinstance(placement, Mapping):
    renamed = _of_variables(plan.assignments, model)
    plan = dataclasses.replace(plan, ops={**plan.ops, **renamed})
  if not (plan.types or plan.layers):  # Names whose kind is unknown.
    plan = _of_names(plan, model)
  plan = dataclasses.replace(
    with_full_names(plan),
    model=model.name,
    # A map of layers does not cover loss and metrics. A complete map of ops
    # names all variables.
    is_partial=plan.is_of_layers
    or any(v.path not in plan.ops for v in model.weights),
  )
  if model.built and not plan.ops:
    check_layers(plan, model)
  return plan


def _joined(planned: VariantConfig, asked: VariantConfig) -> VariantConfig:
  """Returns the variant of a plan, or the requested one if it has none.

  Raises:
    ApplyError: the plan and the request differ.
  """
  same = (planned.count, planned.in_flight, planned.sizes) == (
    asked.count,
    asked.in_flight,
    asked.sizes,
  )
  if not (planned.is_whole or asked.is_whole or same):
    raise ApplyError(
      f"the placement is of {planned.words} with {planned.in_flight} in flight,"
      f" and {asked.words} with {asked.in_flight} are asked for: plan anew, or"
      " leave microbatches out"
    )
  return dataclasses.replace(
    asked if planned.is_whole else planned,
    allow_batch_statistics=(
      planned.allow_batch_statistics or asked.allow_batch_statistics
    ),
    # A plan names each op that it recomputes.
    recompute=asked.recompute
    if planned.recompute.is_none
    else planned.recompute,
  )


def stays(plan: Plan) -> bool:
  """Returns whether the model stays unplaced on TensorFlow's default device.

  Units keep XLA from merging activations with their clones, so a step that
  recomputes in units is placed even on one device.
  """
  if plan.units and not plan.variant.recompute.is_none:
    return False
  return plan.one_device and any(map(local_devices.is_default, plan.devices))


def with_full_names(plan: Plan) -> Plan:
  """Returns a plan whose devices have their full names.

  Raises:
    ApplyError: this process lacks a device. The message names the op or layer.
  """
  ops = local_devices.canonical_devices(plan.ops)
  layers = local_devices.canonical_devices(plan.layers)
  if (ops, layers) == (plan.ops, plan.layers):
    return plan
  return dataclasses.replace(plan, ops=ops, layers=layers)


def _of_variables(ops: Mapping[str, str], model: keras.Model) -> dict[str, str]:
  """Returns the variables of `model` that a placement has in another scope.

  Keras names a variable that a subclassed model creates on its first call
  "model/layer/kernel". After loading from a file the name is "layer/kernel".

  Raises:
    ApplyError: the placement has none of the model's existing variables.
  """
  paths = [variable.path for variable in model.weights]
  layers = state.layer_names(model)
  if not paths or any(name in ops for name in (*paths, *layers)):
    return {}
  for names in _in_other_scopes(ops, paths):
    if all(name in ops for name in names):
      return {p: ops[n] for p, n in zip(paths, names, strict=True)}
  raise ApplyError(
    f"the placement names none of the variables of model {model.name!r},"
    f" such as {paths[0]!r}: it was made for another model, or for one whose"
    " layers have other names (Keras numbers layers without a name of their"
    " own through a whole process: name them, or make the model after"
    " keras.utils.clear_session())",
    op=paths[0],
  )


def _in_other_scopes(
  ops: Iterable[str], paths: Sequence[str]
) -> Iterator[list[str]]:
  """Returns likely paths with one more scope, then with one scope less."""
  for name in ops:
    if name.endswith(f"/{paths[0]}"):
      scope = name.removesuffix(paths[0])
      yield [scope + path for path in paths]
  scope = paths[0].partition("/")[0] + "/"
  yield [path.removeprefix(scope) for path in paths]


def _of_names(plan: Plan, model: keras.Model) -> Plan:
  """Divides the names of a plan into ops and layers.

  Op names have scopes. A mapping without scopes names layers.
  """
  known = state.layer_names(model)
  scoped = any("/" in name for name in plan.ops)
  ops = {n: d for n, d in plan.ops.items() if scoped and n not in known}
  layers = {n: d for n, d in plan.ops.items() if n not in ops}
  return dataclasses.replace(
    plan, ops=ops, layers=layers, is_of_layers=bool(layers)
  )


def check_layers(plan: Plan, model: keras.Model) -> None:
  """Checks that a built model has all layers that a plan names.

  Raises:
    ApplyError: a layer is missing. The message names the first missing layer
      and similar layers of the model.
  """
  known = state.layer_names(model)
  for name, device in plan.layer_devices.items():
    if name not in known:
      raise ApplyError(
        f"the placement names {name!r}, which is no layer of model"
        f" {model.name!r}; {state.similar_names(name, known)} (Keras numbers"
        " layers without a name of their own through a whole process)",
        op=name,
        device=device,
      )


# Least share of the ops of a plan's layers that the traced step must contain,
# called functions excluded. Another model shares only its loss ops.
_LEAST_FOUND = 1 / 3


def check_ops(used: DeviceFunction, model: keras.Model) -> None:
  """Checks that a traced step has the ops of the plan that it was placed by.

  The step that `fit` traces contains nearly all ops of a matching plan, apart
  from loss and optimizer, which may have changed. Ops of called functions are
  not visible in the graph; a plan lists them below the calling op.

  Raises:
    ApplyError: the plan is of another model.
  """
  operations = tf.compat.v1.get_default_graph().get_operations()
  calls = tuple(
    f"{op.name}/" for op in operations if op.type in LOOPS_AND_CALLS
  )
  names = [name for name in used.plan.ops if not name.startswith(calls)]
  in_layers = re.compile(rf"(.*/)?{re.escape(model.name)}(_\d+)?/")
  names = [name for name in names if in_layers.match(name)] or names
  known = {operation.name for operation in operations}
  known.update(variable.path for variable in state.variables(model))
  lacking = [name for name in names if name not in known]
  count = len(names) - len(lacking)
  if lacking and (not used.planned or count < _LEAST_FOUND * len(names)):
    others = f" and {len(lacking) - 1} others" if lacking[1:] else ""
    raise ApplyError(
      f"the placement names {count or 'none'} of the ops of model"
      f" {model.name!r}, and {lacking[0]!r}{others} that it does not have: it"
      " was made for another model, for one whose layers have other names, or,"
      " if it has recurrent layers, where TensorFlow sees GPUs and here it sees"
      " none (or the reverse)",
      op=lacking[0],
    )

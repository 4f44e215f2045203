"""Placements that users give: an object, a file or plain data.

A given placement must name devices of this process and layers of the model.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from tfplace.core.microbatches import (
  WHOLE,
  VariantConfig,
  microbatches_of,
)
from tfplace.core.placement import Placement
from tfplace.errors import ApplyError
from tfplace.formats import results
from tfplace.keras import state
from tfplace.keras.controller import Planner
from tfplace.keras.devices import check_layers
from tfplace.plan import local_devices
from tfplace.plan.config import AUTO
from tfplace.plan.device_map import DeviceMap, from_placement
from tfplace.plan.plan import GIVEN, Plan

PlanLike: TypeAlias = (
  Plan | Placement | Mapping[str, Any] | str | os.PathLike[str]
)


def given_planner(
  placement: PlanLike,
  model: keras.Model,
  microbatches: VariantConfig = WHOLE,
  compile: str = AUTO,
) -> Planner:
  """Returns a planner that hands out a given placement.

  A placement with everything on the default device leaves the model unplaced.

  Args:
    placement: placement in any form that `read_devices` accepts.
    model: model to place.
    microbatches: microbatches of the training step, used if the plan has none.
    compile: whether XLA compiles units of its steps; "auto" does what the plan
      or Keras does.

  Raises:
    ApplyError: the plan is for other microbatches.
    TfplaceError: `read_devices` fails.
  """
  if isinstance(placement, Plan) and stays(placement):
    joined = _joined(placement.microbatch_config, microbatches)
    plan = placement
    if joined != plan.microbatch_config:
      plan = dataclasses.replace(plan, microbatch_config=joined)
    return lambda kind, data: plan
  found = read_devices(placement, model)
  # A map of layers does not cover loss and metrics. A complete map of ops names
  # all variables.
  found = dataclasses.replace(
    found,
    microbatches=_joined(found.microbatches, microbatches),
    is_partial=bool(found.layers)
    or any(v.path not in found.ops for v in model.weights),
    compile=found.compile if compile == AUTO else compile,
  )
  whole = placement.placement if isinstance(placement, Plan) else placement
  plan = Plan(
    model.name,
    GIVEN,
    placement=whole if isinstance(whole, Placement) else None,
    microbatch_config=found.microbatches,
    device_map=found,
  )
  return lambda kind, data: plan


def _joined(own: VariantConfig, asked: VariantConfig) -> VariantConfig:
  """Returns the microbatches of a plan, or the requested ones if it has none.

  Raises:
    ApplyError: the plan and the request differ.
  """
  same = (own.count, own.in_flight, own.sizes) == (
    asked.count,
    asked.in_flight,
    asked.sizes,
  )
  if not (own.is_whole or asked.is_whole or same):
    raise ApplyError(
      f"the placement is of {own.words} with {own.in_flight} in flight, and"
      f" {asked.words} with {asked.in_flight} are asked for: plan anew, or"
      " leave microbatches out"
    )
  return dataclasses.replace(
    asked if own.is_whole else own,
    allow_batch_statistics=(
      own.allow_batch_statistics or asked.allow_batch_statistics
    ),
    # A plan names each op that it recomputes.
    recompute=asked.recompute if own.recompute.is_none else own.recompute,
  )


def stays(plan: Plan) -> bool:
  """Returns whether everything stays on TensorFlow's default device."""
  return plan.one_device and local_devices.default_device() in plan.devices


def read_devices(placement: PlanLike, model: keras.Model) -> DeviceMap:
  """Reads the devices of a placement in any supported form.

  Args:
    placement: a `Placement` or `Plan`, the path or content of a
      placement file, or a mapping from op or layer names to device names
      (short names such as "CPU:1" are allowed).
    model: model whose layers a mapping may name.

  Raises:
    FormatError: the file is not a placement file.
    ApplyError: this process lacks a device, the model lacks a layer, the
      placement is empty, or its order is unknown or lacks the turns of ops.
  """
  if isinstance(placement, Plan):
    found = read_devices(placement.placement or placement.assignments, model)
    return dataclasses.replace(found, microbatches=placement.microbatch_config)
  if isinstance(placement, Placement):
    found = from_placement(placement)
    own = _of_variables(found.ops, model)
    return dataclasses.replace(found, ops={**found.ops, **own})
  assignments = dict(assignments_of(placement))
  order: Sequence[str] = ()
  if isinstance(placement, str | os.PathLike):
    assignments |= _of_variables(assignments, model)
    order = results.load_op_order(placement)
  elif "assignments" in placement:
    order = results.read_op_order(placement)
  turns = {name: turn for turn, name in enumerate(order)}
  return dataclasses.replace(
    _from_mapping(assignments, model), turns=turns, compile=AUTO
  )


def assignments_of(placement: PlanLike) -> Mapping[str, str]:
  """Returns the device names of a placement without checking them.

  Raises:
    FormatError: the file is not a placement file.
    ApplyError: the placement is empty.
  """
  if isinstance(placement, Plan):
    placement = placement.placement or placement.assignments
  if isinstance(placement, Placement):
    return placement.assignments
  if isinstance(placement, (str, os.PathLike)):
    placement = results.load_assignments(placement)
  elif isinstance(placement, Mapping) and "assignments" in placement:
    results.read_order(placement)
    placement = placement["assignments"]  # The content of a placement file.
  if (
    not isinstance(placement, Mapping)
    or not placement
    or not all(isinstance(name, str) for name in placement)
  ):
    raise ApplyError(
      "a placement is a Placement, the path of a placement file, or a mapping"
      f" of op or layer names to device names, not {placement!r:.60}"
    )
  return placement


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


def _from_mapping(
  placement: Mapping[str, str], model: keras.Model
) -> DeviceMap:
  full = local_devices.canonical_devices(placement)
  known = state.layer_names(model)
  # Op names have scopes. A mapping without scopes names layers.
  if not any("/" in name for name in full):
    found = DeviceMap({}, {}, full)
    if model.built:
      check_layers(found, model)
    return found
  layers = {name: d for name, d in full.items() if name in known}
  ops = {name: d for name, d in full.items() if name not in known}
  return DeviceMap(ops, {}, layers, microbatches=microbatches_of(ops))

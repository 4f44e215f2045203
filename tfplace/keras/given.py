"""Plans that a user brings: an object, a file, or plain data.

What can be checked without a trace is checked here: the devices are this
process's, and layers are the model's.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from tfplace.core.placement import Placement
from tfplace.errors import ApplyError
from tfplace.formats import json_file
from tfplace.formats.results import PLACEMENT
from tfplace.keras import state
from tfplace.keras.controller import Planner
from tfplace.keras.devices import check_layers
from tfplace.plan import local_devices
from tfplace.plan import plan as plan_lib
from tfplace.plan.plan import AppliedPlacement, Plan

PlanLike: TypeAlias = (
  AppliedPlacement | Placement | Mapping[str, Any] | str | os.PathLike[str]
)


def given(placement: PlanLike, model: keras.Model) -> Planner:
  """Hands out a plan that is there already.

  Args:
    placement: what names devices; a plan to stay on the default device leaves
      the model as it is.
    model: that the plan is for.

  Raises:
    TfplaceError: as `read_plan`.
  """
  plan: Plan | None = None
  if isinstance(placement, AppliedPlacement) and stays(placement):
    applied = placement
  else:
    plan = read_plan(placement, model)
    applied = plan_lib.given(plan, model.name, _is_partial(plan, model))

  def planner(kind: str, data: Any) -> tuple[Plan | None, AppliedPlacement]:
    del kind, data
    return plan, applied

  return planner


def _is_partial(plan: Plan, model: keras.Model) -> bool:
  """Whether a plan leaves anything open: layers do not name loss and metrics,
  and a plan of all ops names all variables.
  """
  return bool(plan.layers) or any(v.path not in plan.ops for v in model.weights)


def stays(applied: AppliedPlacement) -> bool:
  """Whether everything stays on TensorFlow's default device."""
  return (
    applied.one_device and local_devices.default_device() in applied.devices
  )


def read_plan(placement: PlanLike, model: keras.Model) -> Plan:
  """A plan from whatever names devices.

  Args:
    placement: a `Placement`, or an `AppliedPlacement`; the path of a placement
      file, or what it holds; or a mapping from op names, or from names of
      layers, to device names ("CPU:1" will do).
    model: whose layers a mapping may name.

  Raises:
    FormatError: the file is no placement file.
    ApplyError: a device that this process lacks, a layer that the model lacks,
      or nothing at all is placed.
  """
  if isinstance(placement, AppliedPlacement):
    placement = placement.placement or placement.assignments
  if isinstance(placement, Placement):
    plan = plan_lib.from_placement(placement)
    own = _of_variables(plan.ops, model)
    return dataclasses.replace(plan, ops={**plan.ops, **own})
  if isinstance(placement, (str, os.PathLike)):
    placement = _read_assignments(placement)
    placement |= _of_variables(placement, model)
  elif isinstance(placement, Mapping) and "assignments" in placement:
    placement = placement["assignments"]  # a file's content
  if (
    not isinstance(placement, Mapping)
    or not placement
    or not all(isinstance(name, str) for name in placement)
  ):
    raise ApplyError(
      "a placement is a Placement, the path of a placement file, or a mapping"
      f" of op or layer names to device names, not {placement!r:.60}"
    )
  return _from_mapping(placement, model)


def _of_variables(ops: Mapping[str, str], model: keras.Model) -> dict[str, str]:
  """The variables of `model` that a placement of all ops has in another scope.

  Keras names those that a subclassed model makes when it is first called
  "model/layer/kernel", and once it is loaded from a file "layer/kernel".

  Raises:
    ApplyError: it has none of the variables that the model has by now.
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
  """The paths inside of one more scope, then outside of one; likely ones."""
  for name in ops:
    if name.endswith(f"/{paths[0]}"):
      scope = name.removesuffix(paths[0])
      yield [scope + path for path in paths]
  scope = paths[0].partition("/")[0] + "/"
  yield [path.removeprefix(scope) for path in paths]


def _from_mapping(placement: Mapping[str, str], model: keras.Model) -> Plan:
  full = local_devices.canonical_devices(placement)
  known = state.layer_names(model)
  # A plan of ops always has scoped names; without any, it is one of layers.
  if not any("/" in name for name in full):
    plan = Plan({}, {}, full)
    if model.built:
      check_layers(plan, model)
    return plan
  layers = {name: d for name, d in full.items() if name in known}
  ops = {name: d for name, d in full.items() if name not in known}
  return Plan(ops, {}, layers)


def _read_assignments(path: str | os.PathLike[str]) -> dict[str, str]:
  data = json_file.read_json(path, PLACEMENT)
  with json_file.errors_naming(path):
    assignments = json_file.required(data, "assignments", "placement")
    return json_file.as_object(assignments, "assignments")

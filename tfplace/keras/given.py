"""What users say of a model's placement: all of it, or what stays together.

A placement that is given is an object, a file, or plain data; its devices must
be this process's, and its layers the model's. Where a placement is to be
searched, layers and ops may be kept on one device; an optimizer's slots are
beside their variable always.
"""

import collections
import dataclasses
import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from tfplace.core import constraints
from tfplace.core.op_graph import OpGraph
from tfplace.core.order import ARRIVAL, ORDERS
from tfplace.core.placement import Placement
from tfplace.errors import ApplyError, FormatError, shown
from tfplace.extraction import TracedStep
from tfplace.extraction.microbatches import WHOLE, SplitConfig, split_of
from tfplace.formats import results
from tfplace.keras import state
from tfplace.keras.controller import Planner
from tfplace.keras.devices import check_layers
from tfplace.plan import local_devices
from tfplace.plan import plan as plan_lib
from tfplace.plan.plan import AppliedPlacement, Plan, choices

PlanLike: TypeAlias = (
  AppliedPlacement | Placement | Mapping[str, Any] | str | os.PathLike[str]
)
# A layer, a pattern, or several of them that share one device.
LayerGroup: TypeAlias = str | Sequence[str]


def given(
  placement: PlanLike, model: keras.Model, split: SplitConfig = WHOLE
) -> Planner:
  """Hands out a plan that is there already.

  A plan to stay on the default device leaves the model as it is.

  Args:
    placement: as `read_plan` takes it.
    model: to be placed.
    split: how the step is to be split, where the plan does not say.

  Raises:
    ApplyError: the plan is of another split.
    TfplaceError: as `read_plan`.
  """
  plan: Plan | None = None
  if isinstance(placement, AppliedPlacement) and stays(placement):
    applied = placement
    joined = _joined(applied.split, split)
    if joined != applied.split:
      applied = dataclasses.replace(applied, split=joined)
  else:
    plan = read_plan(placement, model)
    plan = dataclasses.replace(plan, split=_joined(plan.split, split))
    applied = plan_lib.given(plan, model.name, _is_partial(plan, model))

  def planner(kind: str, data: Any) -> tuple[Plan | None, AppliedPlacement]:
    del kind, data
    return plan, applied

  return planner


def _joined(own: SplitConfig, asked: SplitConfig) -> SplitConfig:
  """The split of a plan of ops; the one asked for where it has none.

  Raises:
    ApplyError: they are not the same.
  """
  allowed = own.allow_batch_statistics or asked.allow_batch_statistics
  same = (own.microbatches, own.in_flight) == (
    asked.microbatches,
    asked.in_flight,
  )
  if not (own.is_whole or asked.is_whole or same):
    raise ApplyError(
      f"the placement is of {own.microbatches} microbatches with"
      f" {own.in_flight} in flight, and {asked.microbatches} with"
      f" {asked.in_flight} are asked for: plan anew, or ask for none"
    )
  split = asked if own.is_whole else own
  return dataclasses.replace(split, allow_batch_statistics=allowed)


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


def check_order(order: Any) -> None:
  """Checks that names of ops and devices are all that is needed.

  Raises:
    ApplyError: no order, or ops have turns, which only their costs tell.
  """
  if order not in ORDERS:
    raise ApplyError(
      f"the placement's order is {shown(order)}; it must be one of"
      f" {', '.join(ORDERS)}"
    )
  if order != ARRIVAL:
    raise ApplyError(
      f"the placement's order is {shown(order)}, and names alone do not tell"
      " the turns of its ops: give what plan_model returned, or a Placement"
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
      nothing at all is placed, or ops go by rank in a file or its content.
  """
  if isinstance(placement, AppliedPlacement):
    plan = read_plan(placement.placement or placement.assignments, model)
    return dataclasses.replace(plan, split=placement.split)
  if isinstance(placement, Placement):
    plan = plan_lib.from_placement(placement)
    own = _of_variables(plan.ops, model)
    return dataclasses.replace(plan, ops={**plan.ops, **own})
  assignments = dict(assignments_of(placement))
  if isinstance(placement, (str, os.PathLike)):
    assignments |= _of_variables(assignments, model)
  return _from_mapping(assignments, model)


def assignments_of(placement: PlanLike) -> Mapping[str, str]:
  """Names to devices, as `read_plan` takes them, be they there or not.

  Raises:
    FormatError: the file is no placement file.
    ApplyError: nothing is placed.
  """
  if isinstance(placement, AppliedPlacement):
    placement = placement.placement or placement.assignments
  if isinstance(placement, Placement):
    return placement.assignments
  if isinstance(placement, (str, os.PathLike)):
    check_order(results.load_order(placement))
    placement = results.load_assignments(placement)
  elif isinstance(placement, Mapping) and "assignments" in placement:
    check_order(placement.get("order", ARRIVAL))
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
  return placement


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
  return Plan(ops, {}, layers, split=split_of(ops))


def check_groups(groups: Iterable[LayerGroup]) -> tuple[tuple[str, ...], ...]:
  """The groups of `keep_together`, each as a tuple of names.

  Raises:
    ApplyError: something else than names.
  """
  if isinstance(groups, str) or not isinstance(groups, Iterable):
    groups = (groups,)
  result = []
  for group in groups:
    names = group if isinstance(group, (list, tuple)) else (group,)
    if not names or not all(isinstance(name, str) for name in names):
      raise ApplyError(
        "keep_together takes names of layers, patterns, and lists of them, not"
        f" {group!r:.60}"
      )
    result.append(tuple(names))
  return tuple(result)


def grouped(
  graph: OpGraph,
  traced: TracedStep,
  model: keras.Model,
  keep_together: Iterable[Sequence[str]],
) -> OpGraph:
  """The graph with slots beside their variables and the user's groups.

  Raises:
    ApplyError: a name is no layer of the model and like no name in it.
  """
  groups = _slot_groups(graph, model)
  for names in keep_together:
    groups.append([op for name in names for op in _ops(graph, traced, name)])
  return constraints.keep_together(graph, groups)


def _slot_groups(graph: OpGraph, model: keras.Model) -> list[list[int]]:
  """Positions of each slot's handle and its variable's, both found by path.

  Of several variables of one path none is found here; the controller puts
  their slots beside them.
  """
  count = collections.Counter(v.path for v in state.variables(model))
  return [
    [graph.index[owner.path], graph.index[slot.path]]
    for slot, owner in state.slots(model)
    if all(p in graph.index and count[p] == 1 for p in (slot.path, owner.path))
  ]


def _ops(graph: OpGraph, traced: TracedStep, name: str) -> list[int]:
  """Ops of the layer of that name, of layers like it, or of ops like it."""
  known = {layer for layers in traced.layers.values() for layer in layers}
  wanted = {name} & known or set(fnmatch.filter(known, name))
  if not wanted:
    try:
      return constraints.matching(graph, name)
    except FormatError:
      raise ApplyError(
        f"keep_together names {name!r}, which is no layer of model"
        f" {traced.name!r} and like no op's name; {choices(name, known)}"
      ) from None
  return [
    op
    for op, node in enumerate(graph.names)
    if not wanted.isdisjoint(traced.layers.get(node, ()))
  ]

"""User-given placements and colocation groups of a model.

A given placement is an object, a file or plain data. It must name devices of
this process and layers of the model. For a search, users may keep layers and
ops together on one device. Optimizer slots always share the device of their
variable.
"""

import collections
import dataclasses
import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from tfplace.core import colocation
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
# A layer name, a pattern, or several of them that share one device.
LayerGroup: TypeAlias = str | Sequence[str]


def given(
  placement: PlanLike, model: keras.Model, split: SplitConfig = WHOLE
) -> Planner:
  """Returns a planner that hands out a given placement.

  A placement with everything on the default device leaves the model unplaced.

  Args:
    placement: placement in any form that `read_plan` accepts.
    model: model to place.
    split: microbatches of the training step, used if the plan has none.

  Raises:
    ApplyError: the plan is for other microbatches.
    TfplaceError: `read_plan` fails.
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
  """Returns the microbatches of a plan, or the requested ones if it has none.

  Raises:
    ApplyError: the plan and the request differ.
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
  """Returns whether a plan leaves parts of the model unplaced.

  A plan of layers does not cover loss and metrics. A complete plan of ops
  names all variables.
  """
  return bool(plan.layers) or any(v.path not in plan.ops for v in model.weights)


def stays(applied: AppliedPlacement) -> bool:
  """Returns whether everything stays on TensorFlow's default device."""
  return (
    applied.one_device and local_devices.default_device() in applied.devices
  )


def check_order(order: Any) -> None:
  """Checks that op and device names alone determine the plan.

  Raises:
    ApplyError: the order is invalid, or it is by rank. Ranks require op costs.
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
  """Reads a plan from any supported form of a placement.

  Args:
    placement: a `Placement` or `AppliedPlacement`, the path or content of a
      placement file, or a mapping from op or layer names to device names
      (short names such as "CPU:1" are allowed).
    model: model whose layers a mapping may name.

  Raises:
    FormatError: the file is not a placement file.
    ApplyError: this process lacks a device, the model lacks a layer, the
      placement is empty, or a file or its content has order "rank".
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
  """Returns the device names of a placement without checking them.

  Raises:
    FormatError: the file is not a placement file.
    ApplyError: the placement is empty.
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


def _from_mapping(placement: Mapping[str, str], model: keras.Model) -> Plan:
  full = local_devices.canonical_devices(placement)
  known = state.layer_names(model)
  # A plan of ops always has scoped names. A plan without them names layers.
  if not any("/" in name for name in full):
    plan = Plan({}, {}, full)
    if model.built:
      check_layers(plan, model)
    return plan
  layers = {name: d for name, d in full.items() if name in known}
  ops = {name: d for name, d in full.items() if name not in known}
  return Plan(ops, {}, layers, split=split_of(ops))


def check_groups(groups: Iterable[LayerGroup]) -> tuple[tuple[str, ...], ...]:
  """Returns the groups of `keep_together`, each as a tuple of names.

  Raises:
    ApplyError: an entry is not a name.
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
  """Adds the groups of optimizer slots and of the user to a graph.

  Raises:
    ApplyError: a name matches no layer and no op of the model.
  """
  groups = _slot_groups(graph, model)
  for names in keep_together:
    groups.append([op for name in names for op in _ops(graph, traced, name)])
  return colocation.keep_together(graph, groups)


def _slot_groups(graph: OpGraph, model: keras.Model) -> list[list[int]]:
  """Returns the positions of the handles of slots and variables, by path.

  Variables with the same path are omitted; the controller places their slots.
  """
  count = collections.Counter(v.path for v in state.variables(model))
  return [
    [graph.index[owner.path], graph.index[slot.path]]
    for slot, owner in state.slots(model)
    if all(p in graph.index and count[p] == 1 for p in (slot.path, owner.path))
  ]


def _ops(graph: OpGraph, traced: TracedStep, name: str) -> list[int]:
  """Returns the ops of a named layer, of matching layers, or matching ops."""
  known = {layer for layers in traced.layers.values() for layer in layers}
  wanted = {name} & known or set(fnmatch.filter(known, name))
  if not wanted:
    try:
      return colocation.matching(graph, name)
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

"""What makes a model's plan: hands out a given one, or searches one.

A search may run at once or in the middle of the first fit; what can be checked
of the request is checked when it is made.
"""

import dataclasses
import logging
import os
from typing import Any, TypeAlias

import keras

from tfplace.core.cluster import Cluster
from tfplace.formats.cluster import find_cluster
from tfplace.keras import planning
from tfplace.keras.controller import Planner
from tfplace.keras.read_plan import PlanLike, read_plan
from tfplace.plan import local_cluster as devices_lib
from tfplace.plan import plan as applied_lib
from tfplace.plan import plan as plan_lib
from tfplace.plan.local_cluster import local_cluster
from tfplace.plan.plan import AppliedPlacement, Plan
from tfplace.plan.progress import Progress

ClusterLike: TypeAlias = Cluster | str | os.PathLike[str]
_logger = logging.getLogger("tfplace")


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
  if isinstance(placement, AppliedPlacement) and _stays(placement):
    applied = placement
  else:
    plan = read_plan(placement, model)
    applied = applied_lib.given(plan, model.name, _is_partial(plan, model))

  def planner(kind: str, data: Any) -> tuple[Plan | None, AppliedPlacement]:
    del kind, data
    return plan, applied

  return planner


def _is_partial(plan: Plan, model: keras.Model) -> bool:
  """Whether a plan leaves anything open: layers do not name loss and metrics,
  and a plan of all ops names all variables.
  """
  return bool(plan.layers) or any(v.path not in plan.ops for v in model.weights)


def _stays(applied: AppliedPlacement) -> bool:
  """Whether all is to stay where TensorFlow puts what nobody places."""
  return applied.one_device and devices_lib.default_device() in applied.devices


def searching(
  model: keras.Model,
  cluster: ClusterLike | None,
  is_what_if: bool = False,
  **options: Any,
) -> Planner:
  """Checks the request now, and returns what carries it out.

  Args:
    model: what is planned for.
    cluster: as `place_model`'s.
    is_what_if: the plan is only looked at, and its devices may be others than
      this process has; else it is to be applied here.
    **options: the other arguments of `planning.make_config`.

  Raises:
    ApplyError: a device that this process lacks.
    TfplaceError: an unknown strategy or cluster, or a bad number.
  """
  described = local_cluster() if cluster is None else find_cluster(cluster)
  if not is_what_if:
    devices_lib.check_cluster(described)
  config = planning.make_config(described, **options)

  def planner(kind: str, data: Any) -> tuple[Plan | None, AppliedPlacement]:
    default = devices_lib.default_device()
    names = [device.name for device in config.cluster.devices]
    if names == [default] and not config.limited:
      applied = applied_lib.only_device(default, model.name, kind == "train")
    else:
      progress = Progress(model.name, config.verbose)
      with progress.stage("tracing", f" its {kind} step"):
        traced = planning.trace(model, config, kind, data)
      applied = planning.decide(model, traced, config, progress)
      applied = dataclasses.replace(applied, seconds=progress.seconds)
      _tell(f"model {model.name!r}: {progress}", config.verbose, logging.INFO)
    level = logging.WARNING if applied.one_device else logging.INFO
    _tell(f"model {model.name!r} {applied.message}", config.verbose, level)
    if is_what_if or _stays(applied) or applied.placement is None:
      return None, applied
    return plan_lib.from_placement(applied.placement), applied

  return planner


def _tell(text: str, verbose: int, level: int) -> None:
  if verbose:
    print(text, flush=True)
  else:
    _logger.log(level, "%s", text)

"""What makes a model's plan: hands out a given one, or searches one.

A search may run at once or in the middle of the first fit; what can be checked
of the request is checked when it is made.
"""

import dataclasses
import logging
from typing import Any

import keras

from tfplace.apply import applied as applied_lib
from tfplace.apply import devices as devices_lib
from tfplace.apply import plan as plan_lib
from tfplace.apply import planning
from tfplace.apply.applied import AppliedPlacement
from tfplace.apply.controller import Planner
from tfplace.apply.local_cluster import local_cluster
from tfplace.apply.plan import Plan
from tfplace.apply.progress import Progress
from tfplace.apply.read_plan import PlanLike, read_plan
from tfplace.errors import ApplyError
from tfplace.graph import load_cluster
from tfplace.graph.cluster import Cluster
from tfplace.graph.presets import cluster_preset

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
  model: keras.Model, cluster: Cluster | str | None, **options: Any
) -> Planner:
  """Checks the request now, and returns what carries it out.

  Args:
    model: what is planned for.
    cluster: as `place_model`'s.
    **options: the other arguments of `planning.make_config`.

  Raises:
    ApplyError: a device that this process lacks.
    TfplaceError: an unknown strategy or cluster, or a bad number.
  """
  config = planning.make_config(_resolve(cluster), **options)

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
    if _stays(applied) or applied.placement is None:
      return None, applied
    return plan_lib.from_placement(applied.placement), applied

  return planner


def _tell(text: str, verbose: int, level: int) -> None:
  if verbose:
    print(text, flush=True)
  else:
    _logger.log(level, "%s", text)


def _resolve(cluster: Cluster | str | None) -> Cluster:
  if cluster is None:
    return local_cluster()
  if isinstance(cluster, str):
    is_file = cluster.endswith((".json", ".json.gz"))
    cluster = load_cluster(cluster) if is_file else cluster_preset(cluster)
  if not isinstance(cluster, Cluster):
    raise ApplyError(
      "a cluster is a Cluster, the name of a preset or a file, not"
      f" {cluster!r:.60}"
    )
  devices_lib.check_cluster(cluster)
  return cluster

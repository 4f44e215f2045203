"""Activations that wait in host memory where a placement does not fit."""

import dataclasses

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.evaluation import Evaluation
from tfplace.core.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import Tracker

_MESSAGE_BYTES = 2.0**20


@dataclasses.dataclass(frozen=True)
class OffloadLimits:
  """Limits of the search for the fewest activations; chosen by trial."""

  # Placements to evaluate, besides the one that offloads all activations.
  bisections: int = 6


def host_of(cluster: Cluster) -> np.ndarray:
  """Returns [num_devices] the CPU that each device reaches soonest.

  A device without such a link is its own host.
  """
  own = np.arange(cluster.num_devices)
  cpus = [i for i in own if cluster.devices[i].is_cpu]
  if not cpus:
    return own
  sent_us = _MESSAGE_BYTES / cluster.bandwidth + cluster.latency_us
  sent_us = np.nan_to_num(sent_us[:, cpus], nan=np.inf)
  host = np.array(cpus)[sent_us.argmin(axis=1)]
  is_linked = np.isfinite(sent_us.min(axis=1))
  return np.where(np.isin(own, cpus) | ~is_linked, own, host)


def offload_ops(problem: Problem) -> np.ndarray:
  """Returns the ops that hold activations, most byte-microseconds first."""
  graph = problem.graph
  ops = graph.offload_ops
  offsets, edges = graph.in_csr
  start_us = problem.earliest_start_us
  worth = np.zeros(len(ops))
  for i, op in enumerate(ops):
    mine = edges[offsets[op] : offsets[op + 1]]
    waits_us = start_us[op] - start_us[graph.edge_src[mine]]
    worth[i] = (graph.edge_bytes[mine] * waits_us).max(initial=0.0)
  return ops[np.argsort(-worth, kind="stable")]


def offer_offloaded(
  tracker: Tracker,
  groups: GroupGraph,
  group_devices: np.ndarray,
  limits: OffloadLimits | None = None,
) -> Evaluation | None:
  """Offers a placement with as few activations on hosts as fit in memory.

  Args:
    group_devices: [num_groups] int32 allowed devices of a placement that does
      not fit. If nothing fits, all activations end on hosts.

  Returns:
    The evaluation of the last placement, or None if no activation may move.
  """
  limits = limits or OffloadLimits()
  ops = offload_ops(groups.problem)
  moved = groups.problem.group_of[ops]
  target = host_of(groups.problem.cluster)[group_devices[moved]]
  here = groups.allowed[moved, target] & (target != group_devices[moved])
  # An op that a user keeps with others stays with them.
  here &= np.bincount(groups.problem.group_of)[moved] == 1
  moved, target = moved[here], target[here]
  if not len(moved):
    return None

  def offered(count: int) -> tuple[np.ndarray, Evaluation]:
    trial = group_devices.copy()
    trial[moved[:count]] = target[:count]
    return trial, tracker.offer(groups.expand(trial))

  best, evaluation = offered(len(moved))
  low, high = 0, len(moved)
  for _ in range(limits.bisections if evaluation.feasible else 0):
    if high - low <= 1:
      break
    middle = (low + high) // 2
    trial, found = offered(middle)
    if found.feasible:
      best, evaluation, high = trial, found, middle
    else:
      low = middle
  group_devices[:] = best
  return evaluation

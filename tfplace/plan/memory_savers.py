"""Ways to save memory, and whether a step needs them."""

import dataclasses

import numpy as np

from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.offload import OffloadConfig
from tfplace.core.problem import Problem
from tfplace.core.recompute import RecomputeConfig, segment_of
from tfplace.placers.offload import host_of
from tfplace.plan.config import PlanConfig


def savers(config: PlanConfig, problem: Problem) -> list[MicrobatchConfig]:
  """Returns the ways to save memory, each as a change of the whole step."""
  base, found = config.microbatches, []
  again = dataclasses.replace(base, recompute=RecomputeConfig(everything=True))
  if config.chooses_recomputation:
    found.append(again)
  host = host_of(problem.cluster)
  if config.chooses_offload and (host != np.arange(len(host))).any():
    waits = OffloadConfig(everything=True)
    found += [dataclasses.replace(way, offload=waits) for way in (base, *found)]
  return found


def is_both(saver: MicrobatchConfig) -> bool:
  """Returns True if activations are both recomputed and offloaded."""
  return not (saver.recompute.is_none or saver.offload.is_none)


def by_worth(problem: Problem) -> list[int]:
  """Returns recomputed segments by bytes freed per microsecond, best first."""
  graph = problem.graph
  freed: dict[int, float] = {}
  spent_us: dict[int, float] = {}
  for op, name in enumerate(graph.names):
    segment = segment_of(name)
    if segment is not None:
      freed[segment] = freed.get(segment, 0.0) + graph.op_output_bytes[op]
      spent_us[segment] = spent_us.get(segment, 0.0) + problem.fastest_us[op]
  worth = {i: freed[i] / max(spent_us[i], 1e-3) for i in freed}
  return sorted(worth, key=lambda segment: -worth[segment])


def variables_exceed_memory(problem: Problem) -> bool:
  """Returns True if the devices together cannot hold the variables."""
  held = problem.graph.persistent_bytes.sum()
  return bool(held > sum(d.memory_bytes for d in problem.cluster.devices))

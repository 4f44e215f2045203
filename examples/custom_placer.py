"""A placer of your own beside those that ship (docs/architecture.md)."""

import budget
import numpy as np

import tfplace
from tfplace.placers import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.one_shot import Batches, OneShotPlacer


def longest_first(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Gives each group, the longest first, to the device with the least work.

  The one placement balances work and does not look at transfers.
  """
  busy_us = np.zeros(groups.num_devices)
  choice = np.zeros(groups.num_groups, np.int32)
  for group in np.argsort(-groups.fastest_us, kind="stable"):
    ends = busy_us + groups.time_us[group]
    choice[group] = np.where(groups.allowed[group], ends, np.inf).argmin()
    busy_us[choice[group]] = ends[choice[group]]
  yield [choice]


ops = [tfplace.OpSpec("input", "Placeholder", {"GPU": 1.0, "CPU": 1.0}, [1e5])]
edges = []
for branch in range(12):
  time_us = {"GPU": 100.0 + 50 * branch, "CPU": 5000.0}
  ops.append(tfplace.OpSpec(f"branch_{branch}", "Conv2D", time_us, [1e5]))
  edges.append((0, 0, branch + 1))
graph = tfplace.build_graph("branches", ops, edges)
problem = tfplace.Problem(graph, tfplace.cluster_preset("v100x4"))

mine = OneShotPlacer("longest_first", longest_first).place(
  problem, tfplace.Simulator(problem), Budget(seconds=10), seed=0
)
auto = tfplace.place(problem, strategy="auto", budget_s=budget.seconds())
for result in (mine, auto):
  print(f"{result.strategy:14} {result.evaluation.step_time_us:8.1f} us")

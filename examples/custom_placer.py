"""A placer of your own beside those that ship (docs/architecture.md)."""

import dataclasses
from typing import ClassVar

import budget
import numpy as np

import tfplace
from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class LongestFirstPlacer:
  """Gives each group, the longest first, to the device with the least work."""

  name: ClassVar[str] = "longest_first"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """One placement: it balances work and does not look at transfers.

    Raises:
      InfeasibleError: it does not fit in memory.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    busy_us = np.zeros(groups.num_devices)
    choice = np.zeros(groups.num_groups, np.int32)
    for group in np.argsort(-groups.fastest_us, kind="stable"):
      ends = busy_us + groups.time_us[group]
      choice[group] = np.where(groups.allowed[group], ends, np.inf).argmin()
      busy_us[choice[group]] = ends[choice[group]]
    tracker.offer(groups.expand(choice))
    return tracker.result()


ops = [tfplace.OpSpec("input", "Placeholder", {"GPU": 1.0, "CPU": 1.0}, [1e5])]
edges = []
for branch in range(12):
  time_us = {"GPU": 100.0 + 50 * branch, "CPU": 5000.0}
  ops.append(tfplace.OpSpec(f"branch_{branch}", "Conv2D", time_us, [1e5]))
  edges.append((0, 0, branch + 1))
graph = tfplace.build_graph("branches", ops, edges)
problem = tfplace.Problem(graph, tfplace.cluster_preset("v100x4"))

mine = LongestFirstPlacer().place(
  problem, tfplace.Simulator(problem), Budget(seconds=10), seed=0
)
auto = tfplace.place(problem, strategy="auto", budget_s=budget.seconds())
for result in (mine, auto):
  print(f"{result.strategy:14} {result.evaluation.step_time_us:8.1f} us")

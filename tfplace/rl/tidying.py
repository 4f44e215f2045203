"""A searched placement without what the search did for no reason.

Annealing leaves wherever it happened to be whatever does not lengthen the
step: thousands of small ops, whose devices are noise to a policy that is to
imitate them. Here clusters, from large ones to single groups, go back to where
a simple placement has them as long as the step stays nearly as short; what
remains is what the search has found.
"""

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.placers.clusters import clusters_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.policies import symmetry
from tfplace.simulate import engine

LOSS = 0.01  # of the step time, that tidying may cost in all
MAX_EVALUATIONS = 8000


def tidied(
  problem: Problem, searched: np.ndarray, simple: np.ndarray
) -> tuple[np.ndarray, int]:
  """Puts back what matters little.

  Args:
    problem: what is placed.
    searched: [num_ops] devices of a feasible placement.
    simple: [num_ops] of the one to go back to; devices that are alike may
      have other names there.

  Returns:
    [num_ops] devices, in the names of `simple`, of a placement that fits and
    takes at most `LOSS` longer; and how many placements were simulated.
  """
  groups = GroupGraph(problem)
  classes = symmetry.device_classes(problem.cluster)
  goal = groups.contract(simple)
  now = symmetry.named(groups.contract(searched), classes, goal)
  tables = engine.pack(problem)
  work = engine.workspace(tables)
  memory = problem.cluster.memory_bytes
  limit = (1 + LOSS) * engine.simulate(tables, groups.expand(now), work, np.inf)
  spent = 1
  for label in _levels(groups):
    for cluster in np.unique(label[now != goal]):
      if spent >= MAX_EVALUATIONS:
        return groups.expand(now), spent
      trial = np.where(label == cluster, goal, now)
      spent += 1
      step_us = engine.simulate(tables, groups.expand(trial), work, limit)
      if step_us <= limit and (work.peak_bytes <= memory).all():
        now = trial
  return groups.expand(now), spent


def _levels(groups: GroupGraph) -> list[np.ndarray]:
  """[num_groups] clusters each, from large ones to single groups; of the
  finest, where hardly any is larger than a group, one is enough."""
  found = (
    list(reversed(clusters_by_work(groups).labels)) if groups.num_groups else []
  )
  return [*found[1::2], np.arange(groups.num_groups)]

"""Devices that stand for each other: a placement has one twin per naming.

Costs do not tell twins apart; ties, which go by position, still can.
"""

from tfplace.graph.problem import Problem
from tfplace.graph.swappable import swappable

_MAX_ALIKE = 4  # devices of a chain: each placement has that many! names


def alike_devices(problem: Problem) -> list[list[int]]:
  """Chains of devices of which any two neighbours can be exchanged."""
  chains: list[list[int]] = []
  for device in range(problem.cluster.num_devices):
    last = chains[-1] if chains else []
    if 0 < len(last) < _MAX_ALIKE and swappable(
      problem.cluster, last[-1], device
    ):
      last.append(device)
    else:
      chains.append([device])
  return [chain for chain in chains if len(chain) > 1]

"""Compilation of placers, before the clock of a search starts.

Numba keeps the machine code on disk.
"""

import functools
import itertools
import sys

from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.placers import registry
from tfplace.simulate import Simulator

# More than the starts of `ordered`, which its first samples follow.
_EVALUATIONS = 64


@functools.cache
def warm_up(strategy: str, message_costs: bool = False) -> None:
  """Compiles a strategy by placing a small graph with all its parts.

  Args:
    strategy: one of `registry.STRATEGIES`; of a learned one that `auto` does
      not run, only the simulator is compiled, and of `auto` the learned ones
      only if TensorFlow is loaded.
    message_costs: compile for links that occupy their endpoint devices (see
      `Cluster.has_message_costs`). Each case is compiled separately.

  Raises:
    TfplaceError: the strategy is unknown; lists the choices.
  """
  problem, tight = _ladder(message_costs), _ladder(message_costs, 1.0)
  parts: tuple[str, ...] = (strategy,)
  asked = registry.LEARNED_IN_AUTO if "tensorflow" in sys.modules else ()
  if strategy == "auto":
    parts = (*registry.CLASSICAL, "pipeline", "annealing", *asked)
  elif strategy in registry.LEARNED and strategy not in registry.READY:
    parts = ("single",)  # A policy must be given.
  # Repairs are compiled where nothing fits.
  for part, each in (*((part, problem) for part in parts), ("blocks", tight)):
    placer = registry.get_placer(part)
    # Some placers reject problems this small; their kernels are compiled by
    # then.
    try:
      placer.place(each, Simulator(each), Budget(1e6, _EVALUATIONS), 0)
    except TfplaceError:
      continue


def _ladder(message_costs: bool, memory_bytes: float = 1e6) -> Problem:
  """Builds a graph that is large enough to merge and never proven optimal."""
  count = 12
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 1.0, "CPU": 9.0}, [1e4], 8.0)
    for i in range(count)
  ]
  edges = [(i, 0, i + step) for step in (2, 4) for i in range(count - step)]
  names = ("GPU:0", "GPU:1", "CPU:0")
  devices = tuple(Device(n, n[:3], memory_bytes, 1.0) for n in names)
  links = tuple(
    Link(a, b, 100.0, 1.0, send_us=float(message_costs))
    for a, b in itertools.permutations(names, 2)
  )
  cluster = Cluster("ladder", devices, links)
  return Problem(build_graph("ladder", ops, edges), cluster)

"""The best lower bound that can be proven within a time limit."""

import dataclasses
import functools
import math
import time
from collections.abc import Mapping

import numpy as np

from tfplace.bounds.heads import heads_and_tails
from tfplace.bounds.relaxed import Relaxed, relax
from tfplace.bounds.work import work_prices
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.evaluation import ROUNDING
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem

SIMPLE, WORK, PATH = "simple", "work", "path"


# Numbers of ops to look back for serial work, also of large graphs; a longer
# reach takes several times as long and gains little more. All by trial.
_REACH, _LARGE_REACH, _LARGE_OPS = 32, 8, 20_000
# Number of ops from which a pilot run estimates the time.
_PILOT_OPS = 5_000
_BUDGET_SHARE = 0.25  # of a search, for the bound


@dataclasses.dataclass(frozen=True)
class Bound:
  """A proven lower bound of the step time of every feasible placement.

  Attributes:
    us: bound in microseconds; at least `Problem.simple_bound_us`.
    by_argument: argument -> microseconds that it proves: "simple" (rule 7
      (bound) of docs/simulation.md), "work" (divisible, with the speed of each
      kind) and "path" (heads and tails with transfers).
  """

  us: float
  by_argument: Mapping[str, float]


def lower_bound(problem: Problem, at_most_s: float = math.inf) -> Bound:
  """Proves a lower bound of the step time of every feasible placement.

  The effort is equal on all machines: one to two seconds at 10,000 ops.

  Args:
    at_most_s: estimated limit in seconds. If it does not suffice, the result is
      the bound proven so far.
  """
  began = time.perf_counter()
  proven_us = {SIMPLE: problem.simple_bound_us}
  num_ops = problem.graph.num_ops
  if num_ops:
    relaxed = relax(problem)
    proven_us[WORK], price = work_prices(relaxed, limit_s=at_most_s / 3)
    reach = _LARGE_REACH if num_ops > _LARGE_OPS else _REACH
    pilot = (0,) if num_ops > _PILOT_OPS and at_most_s < math.inf else ()
    took_s = 0.0
    for length in (*pilot, reach):
      left_s = at_most_s - (time.perf_counter() - began)
      # The time grows in proportion to the reach; a pilot run tells how.
      if left_s <= 0 or took_s * length / 2 > left_s:
        break
      proven_us[PATH] = _longest_path(relaxed, price, length)
      took_s = left_s - (at_most_s - (time.perf_counter() - began))
  safe = {k: v * (1 - ROUNDING) for k, v in proven_us.items() if np.isfinite(v)}
  safe[SIMPLE] = proven_us[SIMPLE]
  return Bound(max(safe.values()), safe)


def tightened(problem: Problem, at_most_s: float = math.inf) -> Problem:
  """Returns the problem with its proven bound raised by `lower_bound`."""
  proven_us = max(problem.proven_us, lower_bound(problem, at_most_s).us)
  return problem.with_bound(proven_us)


def tightened_within(
  problem: Problem, budget_s: float
) -> tuple[Problem, float]:
  """Tightens a problem with part of a search budget.

  Returns the problem and the seconds left, at least half of `budget_s`.
  """
  warm_up()
  began = time.perf_counter()
  problem = tightened(problem, at_most_s=_BUDGET_SHARE * budget_s)
  took_s = time.perf_counter() - began
  return problem, max(budget_s - took_s, budget_s / 2)


@functools.cache
def warm_up() -> None:
  """Compiles or loads the kernels, so that no budget pays for that."""
  ops = [OpSpec(name, "MatMul", {"CPU": 1.0}, [1.0]) for name in "ab"]
  graph = build_graph("warm_up", ops, [(0, 0, 1)])
  lower_bound(Problem(graph, Cluster("warm_up", (Device("CPU:0", "CPU"),))))


def _longest_path(relaxed: Relaxed, price: np.ndarray, reach: int) -> float:
  head, tail = heads_and_tails(relaxed, price, reach)
  return float((head + relaxed.time_us + tail).min(axis=1).max())

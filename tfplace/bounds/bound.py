"""`lower_bound`: the largest of all that can be proved in the time allowed."""

import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from tfplace.bounds.heads import heads_and_tails
from tfplace.bounds.relaxed import Relaxed, relax
from tfplace.bounds.windows import busiest_group, busiest_window
from tfplace.bounds.work import priced_work, work_prices
from tfplace.graph.evaluation import ROUNDING
from tfplace.graph.problem import Problem

SIMPLE, WORK, GROUP, PATH, WINDOW = "simple", "work", "group", "path", "window"
# How far to look back for work in series. The first is always tried; each of
# the others takes a few times as long as the one before and gains little more.
_REACHES = (32, 128, 512)
_LARGE = 20_000  # ops from which the first is shorter
_LARGE_REACHES = (8, 32, 128)


@dataclasses.dataclass(frozen=True)
class Bound:
  """A proven lower bound of the step time of every feasible placement.

  Attributes:
    us: the bound in microseconds; at least `Problem.simple_bound_us`.
    argument: the one that gave it.
    by_argument: argument -> what it proves, microseconds: "simple" (rule 7 of
      the formats), "work" (divisible, each kind at its own speed), "path"
      (heads and tails with transfers), "window" (work between them) and
      "group" (work between them that one device does).
    seconds: that it took.
  """

  us: float
  argument: str
  by_argument: Mapping[str, float]
  seconds: float


def lower_bound(problem: Problem, limit_s: float = 0.0) -> Bound:
  """Proves a lower bound of the step time of every feasible placement.

  Args:
    problem: the graph and the cluster.
    limit_s: seconds to try for more. With 0, the same everywhere: a fixed
      effort, about a second or two at 10,000 ops.
  """
  began = time.perf_counter()
  found = {SIMPLE: problem.simple_bound_us}
  if problem.graph.num_ops:
    relaxed = relax(problem)
    found[WORK], price = work_prices(relaxed)
    is_large = problem.graph.num_ops > _LARGE
    for reach in _LARGE_REACHES if is_large else _REACHES:
      _windows(relaxed, price, reach, found)
      if time.perf_counter() - began > limit_s / 3:
        break
  safe = {k: v * (1 - ROUNDING) for k, v in found.items() if np.isfinite(v)}
  safe[SIMPLE] = found[SIMPLE]
  argument = max(safe, key=lambda key: safe[key])
  return Bound(safe[argument], argument, safe, time.perf_counter() - began)


def tightened(problem: Problem, limit_s: float = 0.0) -> Problem:
  """The problem with the best bound known to all that report its bound.

  Args:
    problem: the graph and the cluster.
    limit_s: as in `lower_bound`.
  """
  proven_us = max(problem.proven_us, lower_bound(problem, limit_s).us)
  return dataclasses.replace(problem, proven_us=proven_us)


def _windows(
  relaxed: Relaxed,
  price: np.ndarray,
  reach: int,
  found: dict[str, float],
) -> None:
  """Raises what paths and windows prove with heads of this reach."""
  head, tail = heads_and_tails(relaxed, price, reach)
  work, free = priced_work(relaxed, price)
  whole = (head + relaxed.time_us + tail).min(axis=1)
  found[PATH] = max(found.get(PATH, 0.0), float(whole.max()))
  found[GROUP] = max(found.get(GROUP, 0.0), busiest_group(relaxed, head, tail))
  best, chosen = busiest_window(head.min(axis=1), tail.min(axis=1), work, free)
  if len(chosen):
    # The set again, now with its groups whole and at prices of its own.
    at = head[chosen].min(), tail[chosen].min()
    best = max(best, float(sum(at)) + work_prices(relaxed, chosen)[0])
  found[WINDOW] = max(found.get(WINDOW, 0.0), best)

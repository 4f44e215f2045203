"""Samples of a policy beside random placements and one-shot placers."""

from collections.abc import Sequence

import numpy as np

from benchmarks.lib import report
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.errors import TfplaceError
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.learned.encoder import features
from tfplace.learned.gdp import placer
from tfplace.learned.policies import Policy
from tfplace.placers.registry import get_placer
from tfplace.simulate import Simulator

ONE_SHOT = ("expert", "axes", "blocks", "m_topo", "m_etf", "heft")
SAMPLES = 16


def at_each_size(
  problem: Problem,
  simulator: Simulator,
  policies: Sequence[Policy],
  temperatures: Sequence[Sequence[float]] = ((1.0,),),
) -> list[dict]:
  """Step times in us by size and arm: of the most probable placement (None
  where it does not fit), of the best, and of the best of as many random ones.

  Args:
    problem: what is placed and on what.
    simulator: of the problem.
    policies: whose samples are compared.
    temperatures: of the samples, see `decisions.shared_noise`; each policy is
      an arm with each of these, in order.
  """
  found = []
  for size in placer.GdpPlacer.sizes:
    decisions = group_decisions(problem, size)
    seen = {p.axes: features.extract(decisions, axes=p.axes) for p in policies}
    logits = [policy.logits(seen[policy.axes]) for policy in policies]
    mine = [
      step_times(simulator, decisions, scores, share)
      for scores in logits
      for share in temperatures
    ]
    random = step_times(simulator, decisions, uniform(problem, decisions))
    found.append(
      {
        "size": size,
        "first_us": [report.known(times[0]) for times in mine],
        "policy_us": [report.known(times.min()) for times in mine],
        "random_us": report.known(random.min()),
      }
    )
  return found


def uniform(problem: Problem, decisions: Decisions) -> np.ndarray:
  """[N, D] logits: any GPU, or a CPU where no GPU can run the coarse group."""
  is_gpu = np.array([d.kind != "CPU" for d in problem.cluster.devices])
  some = decisions.allowed & is_gpu
  may = np.where(some.any(axis=1, keepdims=True), some, decisions.allowed)
  return np.where(may, 0.0, -1e9).astype(np.float32)


def step_times(
  simulator: Simulator,
  decisions: Decisions,
  logits: np.ndarray,
  temperatures: Sequence[float] = (1.0,),
) -> np.ndarray:
  """[1 + SAMPLES] step times, infinite where a placement does not fit."""
  rng = np.random.default_rng(0)
  devices = placer.candidates(decisions, logits, SAMPLES, rng, temperatures)
  batch = simulator.run(np.stack(devices))
  return np.where(batch.feasible, batch.step_time_us, np.inf)


def one_shot(problem: Problem, simulator: Simulator) -> float:
  """Step time in us of the best one-shot placer."""
  found = []
  for name in ONE_SHOT:
    try:
      result = get_placer(name).place(problem, simulator, Budget(60.0), 0)
    except TfplaceError:
      continue
    found.append(result.evaluation.step_time_us)
  return min(found)

"""The `exact` placer: optimal placements of small problems, with proof.

Needs the extra `exact`. OR-tools crashes in a process that has loaded
TensorFlow, so the search runs in a fresh process.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
from typing import ClassVar

import numpy as np

import tfplace
from tfplace.bounds import lower_bound
from tfplace.core.budget import Budget
from tfplace.core.evaluation import ROUNDING, Result
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers.exact import cp_sat
from tfplace.placers.exact.cp_sat import Schedule, solve
from tfplace.placers.groups import GroupGraph
from tfplace.placers.registry import get_placer
from tfplace.placers.repair import offer_repaired
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator
from tfplace.simulate.links import serial_us


@dataclasses.dataclass(frozen=True)
class ExactConfig:
  """Settings of the search; all defaults were chosen by trial."""

  # Strategies whose placements the solver must beat.
  starts: tuple[str, ...] = ("single", "heft", "annealing")
  # Share of the seconds, and evaluations, of each start; the solver gets the
  # rest.
  start_share: float = 0.2
  start_evaluations: int = 20_000
  # Seconds in which the solver's process starts, compiles and stops.
  grace_s: float = 120.0
  # Seconds that any search may take.
  longest_s: float = 1e6


_CONFIG = ExactConfig()
_LENGTH_BYTES = 8  # Length of the size prefix of a request.


@dataclasses.dataclass(frozen=True)
class ExactPlacer:
  """Finds the best placement with CP-SAT, within the budget."""

  name: ClassVar[str] = "exact"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Searches until the budget ends or optimality is proven.

    Raises:
      TfplaceError: OR-tools is not installed, or the problem is too large.
      InfeasibleError: no placement found fits in memory.
    """
    tracker = Tracker(self.name, problem, evaluator, budget)
    _, devices, evaluations = search_apart(
      problem, budget.left_s, budget.max_evaluations, seed
    )
    tracker.evaluations += evaluations
    tracker.offer(devices)
    return tracker.result()


def prove(
  problem: Problem, limit_s: float = 60.0, seed: int = 0
) -> tuple[float, Placement]:
  """Proves a lower bound of the step time and finds the best placement.

  Args:
    limit_s: time limit in seconds.

  Returns:
    The bound in microseconds, at least that of `tfplace.bounds`, and the
    placement. If they are equal, the placement is optimal.

  Raises:
    TfplaceError: OR-tools is not installed, or the problem is too large.
    InfeasibleError: no placement found fits in memory.
  """
  found_us, devices, _ = search_apart(problem, limit_s, None, seed)
  placement = Placement(problem, devices)
  (evaluation,) = Simulator(problem).evaluate([placement])
  # The solver only rules out placements better than the best one found.
  bound_us = min(found_us, evaluation.step_time_us)
  return max(bound_us, lower_bound(problem).us), placement


def search(
  problem: Problem, limit_s: float, max_evaluations: int | None, seed: int
) -> tuple[float, Result]:
  """Searches in this process, which must not have loaded TensorFlow.

  Returns a lower bound in microseconds, and the best placement by simulation.
  Raises TfplaceError if OR-tools is missing or the problem is too large.
  """
  cp_sat.check(problem)
  budget = Budget(limit_s, max_evaluations)
  tracker = Tracker(ExactPlacer.name, problem, Simulator(problem), budget)
  groups = GroupGraph(problem)
  _offer_starts(tracker, seed)
  if tracker.is_met:
    return problem.lower_bound_us, tracker.result()
  most_us = _best_us(tracker, serial_us(problem))
  if not most_us > 0:
    return 0.0, tracker.result()
  schedule = cp_sat.make_schedule(problem, most_us)
  bound_us, met = 0.0, [np.zeros(0, np.int32)]
  # Each round proves that the remaining placements take `bound_us` or more, and
  # evaluates the best of them. Once those are no faster, the best is optimal.
  while met and bound_us < _best_us(tracker, math.inf) and not tracker.is_done:
    found_us, met = solve(schedule, budget.left_s, seed)
    bound_us = max(bound_us, found_us)
    for row in reversed(met):  # Start with the best.
      _judge(tracker, groups, schedule, row)
    if tracker.best:
      schedule.beat(tracker.best[1].step_time_us)
  # `beat` excludes placements that are faster by less than a tick.
  best_us = _best_us(tracker, math.inf) - 2 * schedule.tick_us
  return min(bound_us, best_us) * (1 - ROUNDING), tracker.result()


def _offer_starts(tracker: Tracker, seed: int) -> None:
  problem, budget = tracker.problem, tracker.budget
  for start in _CONFIG.starts:
    if tracker.best and tracker.is_done:
      break
    evaluations, left = _CONFIG.start_evaluations, tracker.left.max_evaluations
    if left is not None:
      evaluations = max(1, min(evaluations, left))
    limit = Budget(_CONFIG.start_share * budget.seconds, evaluations)
    placer = get_placer(start)
    try:
      result = placer.place(problem, tracker.evaluator, limit, seed)
    except InfeasibleError:
      continue
    # The offer below counts one more.
    tracker.evaluations += result.evaluations - 1
    tracker.offer(result.placement.devices)


def _best_us(tracker: Tracker, otherwise: float) -> float:
  return tracker.best[1].step_time_us if tracker.best else otherwise


def _judge(
  tracker: Tracker,
  groups: GroupGraph,
  schedule: Schedule,
  group_devices: np.ndarray,
) -> None:
  """Simulates a placement under all namings, since ties depend on names.

  If it does not fit, repaired versions are tried as well.
  """
  for row in schedule.renamed(group_devices):
    if tracker.is_done:
      return  # Keep it in the model, because not all namings were simulated.
    evaluation = tracker.offer(groups.expand(row))
  if not evaluation.feasible:
    offer_repaired(tracker, groups, group_devices)
  schedule.forbid(group_devices)


def search_apart(
  problem: Problem, limit_s: float, max_evaluations: int | None, seed: int
) -> tuple[float, np.ndarray, int]:
  """Runs `search` in a child process.

  Returns the proven bound in microseconds, [num_ops] devices, and the number of
  evaluated placements. Raises TfplaceError if the search fails or hangs.
  """
  limit_s = min(limit_s, _CONFIG.longest_s)
  request = pickle.dumps((problem, limit_s, max_evaluations, seed))
  with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as log:
    code = _run(request, limit_s + _CONFIG.grace_s, answers, log)
    answers.seek(0)
    log.seek(0)
    if code:
      told = log.read().decode("utf-8", "replace").split()
      raise TfplaceError(
        f"strategy 'exact': the solver's process ended with exit code {code};"
        f" it said {' '.join(told)[-300:]!r}"
      )
    answer = pickle.load(answers)
  if isinstance(answer, TfplaceError):
    raise answer
  return answer


def _run(request: bytes, timeout_s: float, answers: object, log: object) -> int:
  """Runs the child process with the request; returns its exit code."""
  package = str(pathlib.Path(tfplace.__file__).parent.parent)
  path = os.environ.get("PYTHONPATH")
  child = subprocess.Popen(
    [sys.executable, "-m", "tfplace.placers.exact.placer"],
    stdin=subprocess.PIPE,
    stdout=answers,  # type: ignore[call-overload]
    stderr=log,
    env={
      **os.environ,
      "PYTHONPATH": package + (os.pathsep + path if path else ""),
    },
  )
  try:
    # The exit code tells if it died.
    with contextlib.suppress(BrokenPipeError):
      child.stdin.write(len(request).to_bytes(_LENGTH_BYTES, "big") + request)
      child.stdin.flush()
    return child.wait(timeout_s)
  except subprocess.TimeoutExpired:
    raise TfplaceError(
      f"strategy 'exact': the solver gave no answer within {timeout_s:g} s"
    ) from None
  finally:
    child.kill()
    child.wait()
    with contextlib.suppress(BrokenPipeError):
      child.stdin.close()


def _main() -> None:
  requests = sys.stdin.buffer
  length = int.from_bytes(requests.read(_LENGTH_BYTES), "big")
  problem, limit_s, max_evaluations, seed = pickle.loads(requests.read(length))
  threading.Thread(target=_die_with_parent, daemon=True).start()
  answers = os.dup(1)  # All other output goes to stderr.
  os.dup2(2, 1)
  try:
    bound_us, result = search(problem, limit_s, max_evaluations, seed)
    answer: object = bound_us, result.placement.devices, result.evaluations
  except TfplaceError as error:
    answer = error
  with open(answers, "wb") as stream:
    stream.write(pickle.dumps(answer))
  os._exit(0)  # The thread that watches stdin holds its lock.


def _die_with_parent() -> None:
  os.read(0, 1)  # Returns when the parent is gone.
  os._exit(1)


if __name__ == "__main__":
  _main()

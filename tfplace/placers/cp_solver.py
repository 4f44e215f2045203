"""CP-SAT on a schedule: what it meets and what it proves. The model itself, and
why it bounds the simulator, is in `cp_sat`.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from tfplace.errors import TfplaceError


def cp_model() -> Any:
  """The module of OR-tools.

  Raises:
    TfplaceError: it is not installed; names the extra that has it.
  """
  try:
    from ortools.sat.python import cp_model as module  # heavy and optional
  except ImportError as error:
    raise TfplaceError(
      "strategy 'exact' needs OR-tools: pip install 'tfplace[exact]'"
    ) from error
  return module


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
  """A constraint model of one problem.

  Proof that its optimum bounds the simulated step. Take any feasible placement
  and its simulated step, and round all its times down to ticks. Each
  constraint is a difference b - a >= p of times, of which the model rounds
  down p; floor(b) >= floor(a + p) >= floor(a) + floor(p), so it still holds.
  What the model leaves out (the order of queues, memory over time, that an op
  of no time waits for its device) would only rule out more.

  Attributes:
    model: the `CpModel`.
    step: its objective, in ticks.
    on: [num_groups][num_devices] literals.
    tick_us: microseconds of one unit of the model.
    alike: sets of devices that stand for each other: of the placements that
      differ in their names alone, the model has one.
  """

  model: Any
  step: Any
  on: list[list[Any]]
  tick_us: float
  alike: list[list[int]]

  def forbid(self, group_devices: np.ndarray) -> None:
    """Leaves out a placement that has been judged, under all its names."""
    self.model.add_bool_or(
      [row[d].negated() for row, d in zip(self.on, group_devices, strict=True)]
    )

  def beat(self, step_time_us: float) -> None:
    """Leaves out every step that is not faster by more than a tick."""
    self.model.add(self.step <= math.floor(step_time_us / self.tick_us) - 1)

  def renamed(self, group_devices: np.ndarray) -> list[np.ndarray]:
    """The placement under every naming of the devices that are alike."""
    rows = []
    each = [itertools.permutations(chain) for chain in self.alike]
    for names in itertools.product(*each):
      to = np.arange(len(self.on[0]), dtype=np.int32)
      for chain, order in zip(self.alike, names, strict=True):
        to[chain] = order
      rows.append(to[group_devices])
    return rows


def solve(
  schedule: Schedule, limit_s: float, seed: int
) -> tuple[float, list[np.ndarray]]:
  """Searches for at most so long.

  Args:
    schedule: from `make_schedule`.
    limit_s: seconds.
    seed: of the solver.

  Returns:
    A proven lower bound in microseconds of what the model has left, infinite
    where it has nothing left, and [num_groups] devices of each of the better
    and better schedules that were met.
  """
  module = cp_model()
  met: list[np.ndarray] = []

  class Tell(module.CpSolverSolutionCallback):  # type: ignore[name-defined]
    """Reads the devices out of each solution."""

    def on_solution_callback(self) -> None:
      values = [[self.boolean_value(x) for x in row] for row in schedule.on]
      met.append(np.array(values).argmax(axis=1).astype(np.int32))

  solver = module.CpSolver()
  solver.parameters.max_time_in_seconds = limit_s
  solver.parameters.random_seed = seed % 2**31
  # Many strategies in turn, on one core: the same result on any machine.
  solver.parameters.num_workers = 8
  solver.parameters.interleave_search = True
  if solver.solve(schedule.model, Tell()) == module.INFEASIBLE:
    return math.inf, met
  return max(0.0, solver.best_objective_bound) * schedule.tick_us, met

"""Simulation of samples, here or on Dask workers (NumPy only)."""

import functools
from typing import Any

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.placers.dask_workers import Workers
from tfplace.simulate import Simulator
from tfplace.simulate.simulator import Batch

_THREADS = 2  # Of a simulator, as many as cores per local worker.


def step_times(evaluator: Evaluator, devices: np.ndarray) -> np.ndarray:
  """Maps [B, num_ops] devices to [B] step times, infinite if infeasible."""
  run = getattr(evaluator, "run", None)
  if run is not None:  # The simulator's batch call skips checks and reports.
    batch = run(np.ascontiguousarray(devices, np.int32))
    return np.where(batch.feasible, batch.step_time_us, np.inf)
  evaluations = evaluator.evaluate(devices)
  return np.array(
    [e.step_time_us if e.feasible else np.inf for e in evaluations]
  )


class WorkerSimulator(Simulator):
  """Simulator whose batches run on Dask workers.

  The problem is sent once to each worker. Rows that no worker returns are
  simulated here.
  """

  def __init__(self, problem: Problem, workers: Workers) -> None:
    super().__init__(problem)
    self._workers = workers
    self._sent = workers.send(problem.without_derived())

  def run(self, devices: np.ndarray, *args: Any, **kwargs: Any) -> Batch:
    """See `Simulator`; only batches without further arguments are sent."""
    number = min(len(self._workers.addresses), len(devices))
    if args or kwargs or not number:
      return super().run(devices, *args, **kwargs)
    parts = np.array_split(devices, number)
    calls = [(part, self._sent) for part in parts]
    found = self._workers.run(simulate_part, calls, lambda batch, *_: batch)
    batches = [
      batch or super(WorkerSimulator, self).run(part)
      for part, batch in zip(parts, found, strict=True)
    ]
    return Batch(*map(np.concatenate, zip(*batches, strict=True)))


# A worker receives a problem once, as one object.
_simulator = functools.lru_cache(maxsize=64)(
  lambda problem: Simulator(problem, _THREADS)
)


def simulate_part(devices: np.ndarray, problem: Problem) -> tuple[Any, ...]:
  """Simulates [B, num_ops] devices on a worker; returns a `Batch`'s fields."""
  return tuple(_simulator(problem).run(devices))

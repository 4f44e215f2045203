"""Samples of a policy, and their simulation (NumPy only)."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers.dask_workers import Workers
from tfplace.simulate import Simulator
from tfplace.simulate.simulator import Batch

_THREADS = 2  # Of a simulator, as many as cores per local worker.


def sample(
  logits: np.ndarray,
  number: int,
  rng: np.random.Generator,
  groupings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> np.ndarray:
  """Samples [number, N] int32 choices from [N, D] logits (Gumbel trick).

  Args:
    groupings, temperatures: See `shared_noise`.
  """
  count, devices = logits.shape
  noise = shared_noise(rng, number, count, devices, groupings, temperatures)
  result = np.empty((number, count), np.int32)
  for row, row_noise in zip(result, noise, strict=True):
    row[:] = (logits + row_noise).argmax(axis=-1)
  return result


def shared_noise(
  rng: np.random.Generator,
  number: int,
  count: int,
  devices: int,
  groupings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> Iterator[np.ndarray]:
  """Yields `number` arrays [count, devices] of float32 Gumbel noise.

  Args:
    count: Decisions per placement, N.
    devices: Devices per decision.
    groupings: Groupings, each [N], which placements use in turn. Decisions of
      one group get the same noise. They move together, yet each follows the
      distribution of the policy.
    temperatures: Temperatures of equal consecutive shares of the placements.
      Above 1, samples are closer to uniform.
  """
  for row in range(number):
    grouping = groupings[row % len(groupings)] if groupings else None
    size = count if grouping is None else int(grouping.max(initial=0)) + 1
    noise = rng.gumbel(size=(size, devices)).astype(np.float32)
    noise *= np.float32(temperatures[row * len(temperatures) // number])
    yield noise if grouping is None else noise[grouping]


def decoding_noise(
  rng: np.random.Generator,
  samples: int,
  steps: int,
  devices: int,
  groupings: Sequence[np.ndarray] = (),
) -> np.ndarray:
  """Samples [1 + samples, steps, devices] float32 decoding noise.

  The first row is zeros, which decodes the most probable placement. The others
  are `shared_noise`.
  """
  noise = np.zeros((samples + 1, steps, devices), np.float32)
  noises = shared_noise(rng, samples, steps, devices, groupings)
  for row, row_noise in zip(noise[1:], noises, strict=True):
    row[:] = row_noise
  return noise


def greedy_and_samples(
  logits: np.ndarray, samples: int, rng: np.random.Generator
) -> np.ndarray:
  """Returns [1 + samples, N] int32: greedy choices, then samples.

  `logits` are [N, choices]. Inverse transform sampling takes one random number
  per decision, where `sample` takes one per decision and choice.
  """
  weight = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
  bound = np.cumsum(weight, axis=1)
  bound /= bound[:, -1:]
  rows = [logits.argmax(axis=1)]
  for _ in range(samples):
    rows.append((bound <= rng.random((len(logits), 1))).sum(axis=1))
  return np.stack(rows).astype(np.int32)


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

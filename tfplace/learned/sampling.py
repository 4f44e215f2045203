"""Samples of a policy, and their simulation (NumPy only)."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.placers.dask_workers import Workers
from tfplace.simulate import Simulator

_THREADS = 2  # A simulator has as many as a local worker has cores.


def sample(
  logits: np.ndarray,
  number: int,
  rng: np.random.Generator,
  *,
  groupings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> np.ndarray:
  """Samples [number, N] int32 choices from [N, D] logits (Gumbel trick).

  Args:
    groupings, temperatures: See `shared_noise`.
  """
  noise = shared_noise(
    rng,
    number,
    logits.shape,
    groupings=groupings,
    temperatures=temperatures,
  )
  result = np.empty((number, len(logits)), np.int32)
  for row, row_noise in zip(result, noise, strict=True):
    row[:] = (logits + row_noise).argmax(axis=-1)
  return result


def shared_noise(
  rng: np.random.Generator,
  number: int,
  shape: tuple[int, ...],
  *,
  groupings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> Iterator[np.ndarray]:
  """Yields `number` arrays of float32 Gumbel noise.

  Args:
    shape: [N, D] decisions per placement, and devices per decision.
    groupings: Groupings, each [N], which placements use in turn. Decisions of
      one group get the same noise. They move together, yet each follows the
      distribution of the policy.
    temperatures: Temperatures of equal consecutive shares of the placements.
      Above 1, samples are closer to uniform.
  """
  for row in range(number):
    grouping = groupings[row % len(groupings)] if groupings else None
    size = shape[0] if grouping is None else int(grouping.max(initial=0)) + 1
    noise = rng.gumbel(size=(size, *shape[1:])).astype(np.float32)
    noise *= np.float32(temperatures[row * len(temperatures) // number])
    yield noise if grouping is None else noise[grouping]


def decoding_noise(
  rng: np.random.Generator,
  samples: int,
  shape: tuple[int, ...],
  groupings: Sequence[np.ndarray] = (),
) -> np.ndarray:
  """Samples [1 + samples, *shape] float32 decoding noise.

  The first row is zeros, which decodes the most probable placement. The others
  are `shared_noise`.
  """
  noise = np.zeros((samples + 1, *shape), np.float32)
  noises = shared_noise(rng, samples, shape, groupings=groupings)
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


class WorkerSimulator(Simulator):
  """Simulator whose step times are computed on Dask workers.

  The problem is sent once. Rows that no worker returns are simulated here.
  """

  def __init__(self, problem: Problem, workers: Workers) -> None:
    super().__init__(problem)
    self._workers = workers
    self._sent = workers.send(problem.without_derived())

  def step_times(
    self, devices: np.ndarray, limit_us: float = np.inf
  ) -> np.ndarray:
    """See `Evaluator`."""
    number = max(1, min(len(self._workers.addresses), len(devices)))
    parts = np.array_split(devices, number)
    calls = [(part, limit_us, self._sent) for part in parts]
    answers = self._workers.run(simulate_part, calls, lambda us, *_: us)
    simulated = [
      super(WorkerSimulator, self).step_times(part, limit_us)
      if times_us is None
      else times_us
      for part, times_us in zip(parts, answers, strict=True)
    ]
    return np.concatenate(simulated)


# A worker receives a problem once, as one object.
_simulator = functools.lru_cache(maxsize=64)(
  lambda problem: Simulator(problem, _THREADS)
)


def simulate_part(
  devices: np.ndarray, limit_us: float, problem: Problem
) -> np.ndarray:
  """Returns the [B] step times of [B, num_ops] devices, on a worker."""
  return _simulator(problem).step_times(devices, limit_us)

"""Simulation of samples, here or on Dask workers (NumPy only)."""

import collections
import hashlib
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import TfplaceError
from tfplace.placers.dask_workers import Workers
from tfplace.simulate import Simulator
from tfplace.simulate.simulator import Batch

_THREADS = 2  # Of a simulator, as many as cores per local worker.
_KEPT = 64  # Problems that a worker keeps.


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

  The problem is sent once to each worker process. Rows that no worker returns
  are simulated here.
  """

  def __init__(self, problem: Problem, workers: Workers) -> None:
    super().__init__(problem)
    self._workers = workers
    sent = problem.without_derived()
    self._content = pickle.dumps(sent, pickle.HIGHEST_PROTOCOL)
    self._key = hashlib.blake2b(self._content, digest_size=16).hexdigest()

  def run(self, devices: np.ndarray, *args: Any, **kwargs: Any) -> Batch:
    """See `Simulator`; only batches without further arguments are sent."""
    number = min(len(self._workers.addresses), len(devices))
    if args or kwargs or not number:
      return super().run(devices, *args, **kwargs)
    parts = np.array_split(devices, number)
    found = self._ask(parts, None)
    unknown = [i for i, batch in enumerate(found) if batch == ()]
    if unknown:
      asked = self._ask([parts[i] for i in unknown], self._content)
      for i, batch in zip(unknown, asked, strict=True):
        found[i] = batch
    batches = [
      batch or super(WorkerSimulator, self).run(part)
      for part, batch in zip(parts, found, strict=True)
    ]
    return Batch(*map(np.concatenate, zip(*batches, strict=True)))

  def _ask(
    self, parts: Sequence[np.ndarray], content: bytes | None
  ) -> list[Any]:
    """Returns batches; () where the problem is unknown, None where lost."""
    calls = [(part, self._key, content) for part in parts]
    return self._workers.run(simulate_part, calls, self._accepted)

  def _accepted(self, result: Any, devices: np.ndarray, *_: Any) -> Any:
    """Simulates a worker's best row; raises TfplaceError if it errs."""
    if result is None:
      return ()
    batch = Batch(*result)
    if any(len(array) != len(devices) for array in batch):
      raise TfplaceError("it returns a wrong number of samples")
    at = int(batch.step_time_us.argmin())
    ours = super().run(devices[at : at + 1]).step_time_us[0]
    claimed = batch.step_time_us[at]
    if ours != claimed:
      raise TfplaceError(
        f"it says {claimed:g} us of a placement that takes {ours:g} us"
      )
    return batch


# Simulators in this worker process by key, least recently used first.
_simulators: collections.OrderedDict[str, Simulator] = collections.OrderedDict()
_lock = threading.Lock()


def simulate_part(
  devices: np.ndarray, key: str, content: bytes | None
) -> tuple[np.ndarray, ...] | None:
  """Simulates [B, num_ops] devices on a worker.

  Args:
    key: Identity of the problem.
    content: Pickled problem, or None if the worker may know it.

  Returns:
    The fields of a `Batch`, or None if the problem is unknown.
  """
  with _lock:
    simulator = _simulators.pop(key, None)
    if simulator is None and content is not None:
      simulator = Simulator(pickle.loads(content), _THREADS)
    if simulator is None:
      return None
    _simulators[key] = simulator
    if len(_simulators) > _KEPT:
      _simulators.popitem(last=False)
  return tuple(simulator.run(devices))

"""Samples of an iteration, drawn and evaluated here or on workers (NumPy only).

The learner draws the noise, so the numbers do not depend on the workers. Each
worker gets a part of the rows and what they need of the policy. It needs
neither TensorFlow nor tf-agents.
"""

import collections
import dataclasses
import hashlib
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfplace.core import symmetry
from tfplace.core.protocols import Evaluator
from tfplace.errors import TfplaceError
from tfplace.learned.decisions import Decisions
from tfplace.placers.dask_workers import Workers
from tfplace.simulate import Simulator

_THREADS = 2  # Of a simulator, as many as cores per local worker.
_KEPT = 64  # Graphs that a worker keeps.
_UNKNOWN = "unknown"  # Answer of a worker that does not know the graph.


class Context:
  """Data that all samples of one graph share, and values derived from it.

  Attributes:
    decisions: Problem and its decisions.
    evaluator: Evaluates placements of the problem.
    groupings: See `decisions.shared_noise`.
    classes: [num_devices] result of `symmetry.device_classes`.
  """

  def __init__(
    self,
    decisions: Decisions,
    evaluator: Evaluator,
    groupings: tuple[np.ndarray, ...] = (),
  ) -> None:
    self.decisions = decisions
    self.evaluator = evaluator
    self.groupings = groupings
    self.classes = symmetry.device_classes(decisions.problem.cluster)
    self._derived: dict[Callable[..., Any], Any] = {}

  def derived(self, make: Callable[["Context"], Any]) -> Any:
    """Returns `make(self)`, which is computed once."""
    if make not in self._derived:
      self._derived[make] = make(self)
    return self._derived[make]

  def step_times(self, choices: np.ndarray) -> np.ndarray:
    """Maps [B, num_decisions] devices to [B] step times."""
    return step_times(self.evaluator, self.decisions.to_devices(choices))


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


class Draws(Protocol):
  """Picklable request for a batch of samples of one graph.

  A row of the result depends on the same row of the request only.
  """

  def __len__(self) -> int:
    """Number of rows, B."""
    ...

  def part(self, rows: slice) -> "Draws":
    """Returns some of the rows."""
    ...

  def run(self, context: Context) -> Any:
    """Draws and evaluates; returns a named tuple of [B, ...] arrays."""
    ...


class Drawn(NamedTuple):
  """Evaluated samples.

  Attributes:
    choices: [B, N] int32 devices.
    step_us: [B] step times, infinite where infeasible.
  """

  choices: np.ndarray
  step_us: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
  """Draws of policies that sample in the learner: only evaluated.

  Attributes:
    choices: [B, N] int32 devices.
  """

  choices: np.ndarray

  def __len__(self) -> int:
    return len(self.choices)

  def part(self, rows: slice) -> "Given":
    return Given(self.choices[rows])

  def run(self, context: Context) -> Drawn:
    return Drawn(self.choices, context.step_times(self.choices))


class WorkerSampler:
  """Runs draws of one graph on workers.

  The graph is sent once to each worker process. Rows that no worker returns are
  computed here.

  Args:
    context: Context with a `Simulator`.
  """

  def __init__(self, context: Context, workers: Workers) -> None:
    self._context = context
    self._workers = workers
    self._content = pack(context)
    self._key = hashlib.blake2b(self._content, digest_size=16).hexdigest()

  def run(self, draws: Draws) -> Any:
    """Returns the same arrays as `draws.run` here."""
    number = min(len(self._workers.addresses), len(draws))
    if not number:
      return draws.run(self._context)
    bounds = [i * len(draws) // number for i in range(number + 1)]
    parts = [draws.part(slice(*bounds[i : i + 2])) for i in range(number)]
    results = self._ask(parts, None)
    unknown = [i for i, result in enumerate(results) if result is _UNKNOWN]
    if unknown:
      asked = self._ask([parts[i] for i in unknown], self._content)
      for i, result in zip(unknown, asked, strict=True):
        results[i] = result
    return joined(
      [
        result if isinstance(result, tuple) else part.run(self._context)
        for part, result in zip(parts, results, strict=True)
      ]
    )

  def _ask(self, parts: Sequence[Draws], content: bytes | None) -> list[Any]:
    """Returns results; None where they are lost or the graph is unknown."""
    calls = [(part, self._key, content) for part in parts]
    return self._workers.run(run_part, calls, self._accepted)

  def _accepted(self, result: Any, draws: Any, *_: Any) -> Any:
    """Simulates the best sample of a worker; raises TfplaceError if it errs."""
    if result is None:
      return _UNKNOWN
    choices = result.choices if hasattr(result, "choices") else draws.choices
    claimed = getattr(result, "feasible_us", result.step_us)
    if not len(choices) == len(claimed) == len(draws):
      raise TfplaceError("it returns a wrong number of samples")
    best = slice(at := int(claimed.argmin()), at + 1)
    (step_us,) = self._context.step_times(choices[best])
    if step_us != claimed[at]:
      raise TfplaceError(
        f"it says {claimed[at]:g} us of a placement that takes {step_us:g} us"
      )
    return result


def joined(results: list[Any]) -> Any:
  """Concatenates named tuples of arrays along their first axis."""
  first = results[0]
  if len(results) == 1:
    return first
  return type(first)(*map(np.concatenate, zip(*results, strict=True)))


def pack(context: Context) -> bytes:
  """Pickles a context without the values that are derived from it."""
  decisions = context.decisions
  content = (
    decisions.problem.without_derived(),
    (decisions.decision_of, decisions.base, decisions.config),
    context.groupings,
  )
  return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def unpack(content: bytes) -> Context:
  """Inverse of `pack`, with a simulator."""
  problem, decisions, groupings = pickle.loads(content)
  return Context(
    Decisions(problem, *decisions), Simulator(problem, _THREADS), groupings
  )


# Contexts in this worker process by key, least recently used first.
_contexts: collections.OrderedDict[str, Context] = collections.OrderedDict()
_lock = threading.Lock()


def run_part(draws: Draws, key: str, content: bytes | None) -> Any:
  """Runs draws on a worker.

  Args:
    key: Identity of the context.
    content: Result of `pack`, or None if the worker may know the context.

  Returns:
    The result, or None if the context is unknown.
  """
  with _lock:
    context = _contexts.pop(key, None)
    if context is None and content is not None:
      context = unpack(content)
    if context is None:
      return None
    _contexts[key] = context
    if len(_contexts) > _KEPT:
      _contexts.popitem(last=False)
  return draws.run(context)

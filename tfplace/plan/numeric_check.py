"""Numeric check that a microbatched step equals the whole step.

Both steps run once on this host's CPU, from the same state and on the same
batch. Loss, metrics and updated variables must agree to 1e-4. The steps run in
sessions of their own, in a form that can be compared (`plan/comparable.py`),
with copies of the variables; the model is unchanged.

Rounding changes some updates by more than that (Adam divides gradients that
are zero up to rounding by their own size). The check measures this noise: the
whole step runs again from weights that differ in their last digits. A
difference is an error only if it exceeds the noise of several such runs.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfplace.errors import ExtractionError, TfplaceError
from tfplace.extraction.safety import side_effects
from tfplace.extraction.traced import (
  TracedStep,
  check_runs_alone,
  with_initializers,
)
from tfplace.graph.cluster import CPU, Cluster, Device
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.problem import Problem
from tfplace.measure.local import host
from tfplace.measure.session.session import unoptimized
from tfplace.plan.comparable import comparable, incomparable, uses_half
from tfplace.simulate import Simulator

_SEED = "seed_generator_state"  # Every microbatch draws from it.


# Tolerances and limits of the check; the values are our choice.
_TOLERANCE = 1e-4  # Largest relative difference.
_NOISE = 10.0  # Multiple of the rounding noise that is allowed in addition.
# Relative rounding noise from which an update is ignored.
_UNINFORMATIVE = 0.02
_PERTURBATION = 3e-7  # Relative change of the weights that simulates rounding.
_MOST_RUNS = 4  # Number of perturbed runs before a difference is an error.
_MOST_SECONDS = 10.0  # Largest estimated step time of a check.
_MEMORY_SHARE = 0.5  # Share of the host's free memory that a step may need.


@dataclasses.dataclass(frozen=True)
class _Outcome:
  """Loss of a step, and values before and after it by variable name."""

  loss: float
  before: Mapping[str, np.ndarray]
  after: Mapping[str, np.ndarray]

  def update(self, name: str) -> np.ndarray:
    return self.after[name] - self.before[name]


def smaller_batch(
  graph: OpGraph, divided: TracedStep, seconds: float
) -> int | None:
  """Returns the batch size with which a microbatched step takes `seconds` here.

  Each microbatch keeps at least two examples. Returns None if the whole batch
  takes no longer.
  """
  step = _on_host(graph)
  if step is None or step.step_time_us / 1e6 <= seconds:
    return None
  sizes = divided.microbatch_sizes
  least = 2 * math.ceil(divided.batch_size / min(sizes))
  wanted = int(divided.batch_size * seconds * 1e6 / step.step_time_us)
  size = max(least, wanted)
  return size if size < divided.batch_size else None


def _on_host(graph: OpGraph) -> Evaluation | None:
  """Simulates a step on this host's CPU; None if an op has no CPU kernel."""
  cluster = Cluster("host", (Device("CPU:0", CPU),))
  try:
    problem = Problem(graph, cluster)
  except TfplaceError:
    return None
  row = np.zeros((1, graph.num_ops), np.int32)
  (evaluation,) = Simulator(problem).evaluate(row)
  return evaluation


def skip_reason(
  graph: OpGraph,
  divided: TracedStep,
  max_in_flight: int | None = None,
  share: float = 1.0,
) -> str:
  """Returns the reason why this host cannot run the check, or "".

  The whole step takes about as long as its microbatches in sequence, and needs
  the memory of all of them.

  Args:
    graph: op graph of the microbatched step, with estimated costs.
    divided: the microbatched step.
    max_in_flight: maximum number of microbatches in flight; None means all.
    share: share of the batch with which the steps run.
  """
  if side_effects.when_run(divided.graph_def):
    return "the step has side effects"
  try:
    check_runs_alone(divided)
  except ExtractionError as error:
    return str(error)
  if why := incomparable(divided.graph_def):
    return why
  step = _on_host(graph)
  if step is None:
    return "the step cannot run on this host's CPU"
  seconds = share * step.step_time_us / 1e6
  if seconds > _MOST_SECONDS:
    return f"one step would take about {seconds:.0f} s on this host"
  kept = float(np.sum(graph.persistent_bytes))
  in_flight = share * (max(step.peak_memory_bytes.values()) - kept)
  at_once = (max_in_flight or divided.microbatches) / divided.microbatches
  widened = 2 if uses_half(divided) else 1  # It runs in float32.
  needed = widened * (kept + in_flight / min(at_once, 1.0))
  free = _MEMORY_SHARE * host.free_bytes()
  if needed > free:
    return (
      f"one step needs about {needed / 2**30:.1f} GiB, and this host has"
      f" {free / 2**30:.1f} GiB to spare"
    )
  return ""


def check_equal(whole: TracedStep, divided: TracedStep) -> float:
  """Compares a microbatched step with the whole step.

  Raises:
    ExtractionError: the steps differ. The message names the loss or the
      variable and the difference.
  """
  began = time.monotonic()
  whole, divided = comparable(whole), comparable(divided)
  feeds = _batch(whole)
  rng = np.random.default_rng(0)
  with _runner(divided, feeds) as run:
    outcome = run()
  with _runner(whole, feeds) as run:
    reference, rounded = run(), list[_Outcome]()
    if not math.isfinite(reference.loss):
      raise ExtractionError(
        f"the loss of model {whole.name!r} is {reference.loss} on the batch of"
        " the check, so that its microbatches cannot be compared: give a sample"
        " of real data, or pass check=False"
      )
    what = _difference(reference, rounded, outcome)
    while what and len(rounded) < _MOST_RUNS:
      rounded.append(run(rng))
      what = _difference(reference, rounded, outcome)
  if what:
    raise ExtractionError(
      f"the step of model {whole.name!r} in {divided.microbatches} microbatches"
      f" does not compute what the whole step does: {what}; plan the whole step"
      " (microbatches=1)"
    )
  return time.monotonic() - began


def _batch(traced: TracedStep) -> dict[str, np.ndarray]:
  """Returns the sample by tensor name, with synthetic data for constants.

  Synthetic integers are 0 and 1, which are valid tokens, classes and masks of
  nearly every model.
  """
  rng = np.random.default_rng(0)
  feeds = {}
  for feed in traced.feeds.values():
    value = feed.value
    if value is None or (value.size > 1 and (value == value.flat[0]).all()):
      if feed.dtype.is_floating:
        value = rng.random(feed.shape).astype(feed.dtype.as_numpy_dtype)
      elif feed.dtype == tf.string:
        value = np.full(feed.shape, b"", object)
      else:
        kind = feed.dtype.as_numpy_dtype
        value = rng.integers(0, 2, feed.shape).astype(kind)
        if value.ndim > 1 and value.shape[-1] > 1:
          value[..., 0] = 1  # No row is all masked.
    feeds[feed.tensor] = value
  return feeds


@contextlib.contextmanager
def _runner(
  traced: TracedStep, feeds: Mapping[str, np.ndarray]
) -> Iterator[Callable[..., _Outcome]]:
  """Yields a function that runs a step from the state of the model.

  Given a generator, it perturbs the weights first.
  """
  prepared = with_initializers(traced)
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(prepared.graph_def, name="")
    reads = {
      name: tf.raw_ops.ReadVariableOp(
        resource=graph.get_tensor_by_name(f"{name}:0"), dtype=spec.dtype
      )
      for name, spec in traced.variables.items()
      if graph.get_operation_by_name(name).type == "VarHandleOp"
    }
    reads = {n: r for n, r in reads.items() if not n.endswith(_SEED)}
    # GPUs have less memory, and round to TF32.
    on_host = tf.compat.v1.ConfigProto(
      device_count={"GPU": 0}, allow_soft_placement=True
    )
    as_built = unoptimized(on_host)  # Grappler takes longer than the steps.
    with tf.compat.v1.Session(graph=graph, config=as_built) as session:

      def run(rng: np.random.Generator | None = None) -> _Outcome:
        initial = prepared.feeds
        if rng is not None:
          initial = {
            name: _perturbed(value, rng) for name, value in initial.items()
          }
        session.run(list(prepared.assignments), initial)
        before = session.run(reads)
        step = [traced.fetches[0], list(traced.targets)]
        loss, _ = session.run(step, dict(feeds))
        return _Outcome(float(np.sum(loss)), before, session.run(reads))

      yield run


def _perturbed(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns the value with entries slightly changed at random."""
  if value.dtype.kind != "f":
    return value
  signs = rng.integers(0, 2, value.shape, np.int8) * 2 - 1
  return (value * (1.0 + _PERTURBATION * signs)).astype(value.dtype)


def _difference(
  reference: _Outcome, rounded: Sequence[_Outcome], outcome: _Outcome
) -> str:
  """Describes a difference beyond rounding; "" if there is none."""
  noise = max((abs(r.loss - reference.loss) for r in rounded), default=0.0)
  allowed = _TOLERANCE * max(abs(reference.loss), 1e-6)
  if not abs(outcome.loss - reference.loss) <= allowed + _NOISE * noise:
    return f"its loss is {outcome.loss:.7g}, not {reference.loss:.7g}"
  for name in reference.after:
    if name not in outcome.after:
      continue
    expected = reference.update(name)
    size = np.linalg.norm(expected) or np.linalg.norm(reference.before[name])
    if not size or not np.isfinite(size):
      continue
    moved = (np.linalg.norm(r.update(name) - expected) for r in rounded)
    noise = float(max(moved, default=0.0) / size)
    if noise > _UNINFORMATIVE:
      continue
    off = np.linalg.norm(outcome.update(name) - expected) / size
    if not off <= _TOLERANCE + _NOISE * noise:
      return f"the update of {name!r} is {off:.2g} of its size off"
  return ""

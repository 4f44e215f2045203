"""The largest batch that fits: predicted, then verified by real traces."""

import dataclasses
from collections.abc import Callable

from tfplace.core.estimate import LargestBatch
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.core.progress import Progress, silent
from tfplace.errors import InfeasibleError, TfplaceError, shown
from tfplace.plan import sources
from tfplace.plan.estimate import cards, fits
from tfplace.plan.estimate.cards import Card
from tfplace.plan.estimate.config import CONFIG
from tfplace.plan.estimate.steps import StepSource


@dataclasses.dataclass(frozen=True)
class _Trial:
  """One batch size: `load` is the peak over memory of one device."""

  load: float
  found: fits.Found | None


def find_largest_batch(
  source: StepSource,
  card: Card,
  *,
  batch_size: int,
  precision: str | None = None,
  microbatches: MicrobatchConfig = WHOLE,
  costs: str = sources.DEFAULT_COSTS,
  on_stage: Progress = silent,
) -> LargestBatch:
  """Finds a batch that fits on all devices of a card and whose successor not.

  Memory is nearly affine in the batch: two batches predict the answer, and
  each prediction is traced and simulated until a batch that fits has one that
  does not fit right above it.

  Args:
    source: the model.
    card: the devices.
    batch_size: batch to begin with.
    precision: dtype policy; None is the model's own.
    microbatches: microbatches of the step.
    costs: name of the cost model.
    on_stage: called at the start of each stage.

  Raises:
    InfeasibleError: not even the smallest batch fits.
    TfplaceError: the devices have unlimited memory, or no limit is reached.
  """
  trials: dict[int, _Trial] = {}

  def tried(size: int) -> _Trial:
    if size not in trials:
      if len(trials) >= CONFIG.max_traces:
        raise TfplaceError(
          f"the largest batch of {source.name!r} on cluster"
          f" {card.cluster.name!r} was not found within {CONFIG.max_traces}"
          f" traces; tried {sorted(trials)}"
        )
      on_stage(f"batch {size}")
      trials[size] = _trial(
        source, card, size, precision, microbatches, costs, on_stage
      )
    return trials[size]

  if microbatches.sizes is not None:
    raise TfplaceError(
      f"microbatches is {shown(list(microbatches.sizes))}, and the largest"
      " batch is sought in equal microbatches: give their number"
    )
  least = microbatches.count
  low, high = _bracket(tried, max(batch_size, least), least)
  if low < least:
    one = trials[least]
    raise InfeasibleError(
      f"a batch of {least} of {source.name!r} does not fit on cluster"
      f" {card.cluster.name!r}: on one device it needs {one.load:.2f} times its"
      " memory, and no placement on all devices was found that fits; use more"
      " devices or more memory"
    )
  weak = 0  # Predictions that left more than half of the bracket.
  while high - low > 1:
    middle = (low + high) // 2
    if weak < CONFIG.max_weak_predictions:
      middle = _predicted(trials, low, high)
    width = high - low
    low, high = (middle, high) if tried(middle).found else (low, middle)
    weak += high - low > width / 2
  found = trials[low].found
  if found is None:
    raise AssertionError("the lower end of the bracket fits")
  strategy, step_time_us, peak = found
  return LargestBatch(
    cluster=card.cluster.name,
    batch_size=low,
    strategy=strategy,
    step_time_us=step_time_us,
    peak_memory_bytes=peak,
    tried=tuple(trials),
  )


def _trial(
  source: StepSource,
  card: Card,
  size: int,
  precision: str | None,
  microbatches: MicrobatchConfig,
  costs: str,
  on_stage: Progress,
) -> _Trial:
  traced = source.trace(size, microbatches, precision, on_stage)
  (graph,) = cards.graphs_of(traced, [card], costs, on_stage)
  one = fits.on_one_device(graph, card)
  if one.memory_bytes == float("inf"):
    raise TfplaceError(
      f"cluster {card.cluster.name!r} has unlimited memory, so that every batch"
      " fits; give its devices memory_bytes, or name a preset"
    )
  load = one.peak_memory_bytes / max(one.memory_bytes, 1.0)
  if one.fits:
    return _Trial(
      load, ("single", one.schedule.step_time_us, one.peak_memory_bytes)
    )
  kinds = card.kinds()
  if sum(d.kind in kinds for d in card.cluster.devices) < 2:
    return _Trial(load, None)
  return _Trial(load, fits.placed(graph, card.cluster, kinds))


def _bracket(
  tried: Callable[[int], _Trial], first: int, least: int
) -> tuple[int, int]:
  """Returns a batch that fits, or `least` - 1, and a larger one that does not.

  Raises:
    TfplaceError: even the largest batch that is tried fits.
  """
  low, high = first, 0
  while not tried(low).found:
    if low <= least:
      return least - 1, least
    low, high = max(least, low // 2), low
  if high:
    return low, high
  high = 2 * first
  while tried(high).found:
    if high >= CONFIG.max_batch:
      raise TfplaceError(
        f"a batch of {high} still fits, and no larger one is tried; its memory"
        " hardly depends on the batch"
      )
    per_example = (tried(high).load - tried(low).load) / (high - low)
    low, high = high, 2 * high
    if per_example > 0 and tried(low).load < 1:
      # One beyond the prediction, which should not fit.
      high = low + int((1 - tried(low).load) / per_example) + 1
    high = min(max(high, low + 1), CONFIG.max_batch)
  return low, high


def _predicted(trials: dict[int, _Trial], low: int, high: int) -> int:
  """Predicts the largest batch between two, by the nearest two loads.

  The load of one device at the limit is that of the prediction. On several
  devices it is unknown, and the middle is taken.
  """
  middle = (low + high) // 2
  if trials.get(low) is None or trials[low].load >= 1:
    return middle
  slope = (trials[high].load - trials[low].load) / (high - low)
  if slope <= 0 or trials[high].load <= 1:
    return middle
  guess = low + int((1 - trials[low].load) / slope)
  return min(max(guess, low + 1), high - 1)

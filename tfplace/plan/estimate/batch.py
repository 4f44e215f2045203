"""The largest batch that fits, by real traces."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tfplace.core.estimate import LargestBatch
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.core.progress import Progress, silent
from tfplace.errors import InfeasibleError, TfplaceError, shown
from tfplace.plan import sources
from tfplace.plan.estimate import cards, fits
from tfplace.plan.estimate.cards import Card
from tfplace.plan.estimate.steps import StepSource

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep

_MAX_BATCH = 1 << 20  # Largest batch that is tried.
# Peak over memory of one device, and the placement that fits, if any.
Trial = tuple[float, fits.Found | None]


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
  if microbatches.sizes is not None:
    raise TfplaceError(
      f"microbatches is {shown(list(microbatches.sizes))}, and the largest"
      " batch is sought in equal microbatches: give their number"
    )
  trials: dict[int, Trial] = {}

  def tried(size: int) -> Trial:
    if size not in trials:
      on_stage(f"batch {size}")
      traced = source.trace(size, microbatches, precision, on_stage)
      trials[size] = _trial(traced, card, costs, on_stage)
    return trials[size]

  least = microbatches.count
  low = largest(tried, max(batch_size, least), least)
  load, found = tried(low)
  if found is None:
    raise InfeasibleError(
      f"a batch of {least} of {source.name!r} does not fit on cluster"
      f" {card.cluster.name!r}: on one device it needs {load:.2f} times its"
      " memory, and no placement on all devices was found that fits; use more"
      " devices or more memory"
    )
  strategy, step_time_us, peak = found
  return LargestBatch(
    cluster=card.cluster.name,
    batch_size=low,
    strategy=strategy,
    step_time_us=step_time_us,
    peak_memory_bytes=peak,
    tried=tuple(trials),
  )


def largest(tried: Callable[[int], Trial], size: int, least: int) -> int:
  """Returns the largest size from `least` on that fits, or else `least`.

  Memory is nearly affine in the batch, so every other size is where the line
  through the ends of the bracket reaches the memory. The sizes between halve
  the bracket, or double the size.

  Raises:
    TfplaceError: even the largest batch that is tried fits.
  """
  low, high, is_predicted = least - 1, 0, False
  while not high or high - low > 1:
    if tried(size)[1]:
      low = size
    else:
      high = size
    if not high and low >= _MAX_BATCH:
      raise TfplaceError(
        f"a batch of {low} still fits, and no larger one is tried; its memory"
        " hardly depends on the batch"
      )
    size = (low + high) // 2 if high else min(2 * low, _MAX_BATCH)
    is_predicted = not is_predicted
    if high and low >= least and is_predicted:
      (first, _), (last, _) = tried(low), tried(high)
      if first < 1 < last:
        size = low + int((1 - first) / (last - first) * (high - low))
    size = max(size, low + 1)
  return max(low, least)


def _trial(
  traced: "TracedStep", card: Card, costs: str, on_stage: Progress
) -> Trial:
  (graph,) = cards.graphs_of(traced, [card], costs, on_stage)
  one = fits.on_one_device(graph, card)
  if one.memory_bytes == float("inf"):
    raise TfplaceError(
      f"cluster {card.cluster.name!r} has unlimited memory, so that every batch"
      " fits; give its devices memory_bytes, or name a preset"
    )
  load, kinds = one.peak_memory_bytes / max(one.memory_bytes, 1.0), card.kinds()
  if one.fits:
    return load, ("single", one.schedule.step_time_us, one.peak_memory_bytes)
  if sum(d.kind in kinds for d in card.cluster.devices) < 2:
    return load, None
  return load, fits.placed(graph, card.cluster, kinds)

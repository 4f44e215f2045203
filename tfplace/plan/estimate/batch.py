"""The largest batch that fits, by real traces."""

from collections.abc import Callable

from tfplace.errors import InfeasibleError, TfplaceError, shown
from tfplace.graph.estimate import MAX_BATCH, LargestBatch
from tfplace.plan.estimate import fits
from tfplace.plan.estimate.cards import Card, Traces


def find_largest_batch(
  traces: Traces, card: Card, batch_size: int
) -> LargestBatch:
  """Finds a batch that fits on all devices of a card and whose successor not.

  The search begins with `batch_size`.

  Raises:
    InfeasibleError: not even the smallest batch fits.
    TfplaceError: the devices have unlimited memory.
  """
  source, variant = traces.source, traces.config.variant
  if variant.sizes is not None:
    raise TfplaceError(
      f"microbatches is {shown(list(variant.sizes))}, and the largest"
      " batch is sought in equal microbatches: give their number"
    )
  tried: dict[int, fits.Fit | None] = {}
  loads: dict[int, float] = {}  # Peak over memory of one device.

  def is_fitting(size: int) -> bool:
    if size not in tried:
      traces.on_stage(f"batch {size}")
      traced = traces.trace(variant, size)
      (graph,) = traces.graphs(traced, [card])
      one = fits.on_one_device(graph, card)
      if one.memory_bytes == float("inf"):
        raise TfplaceError(
          f"cluster {card.cluster.name!r} has unlimited memory, so that every"
          " batch fits; give its devices memory_bytes, or name a preset"
        )
      loads[size] = one.peak_memory_bytes / max(one.memory_bytes, 1.0)
      tried[size], kinds = fits.of_one(one), card.kinds()
      if (
        not one.fits and sum(d.kind in kinds for d in card.cluster.devices) > 1
      ):
        tried[size] = fits.placed(graph, card.cluster, kinds)
    return tried[size] is not None

  least = variant.count
  size = largest(is_fitting, max(batch_size, least), least)
  if not is_fitting(size):
    raise InfeasibleError(
      f"a batch of {least} of {source.name!r} does not fit on cluster"
      f" {card.cluster.name!r}: on one device it needs {loads[size]:.2f} times"
      " its memory, and no placement on all devices was found that fits; use"
      " more devices or more memory"
    )
  fit = tried[size]
  assert fit is not None  # `is_fitting`
  return LargestBatch(card.cluster.name, size, *fit, tuple(tried))


def largest(is_fitting: Callable[[int], bool], size: int, least: int) -> int:
  """Returns the largest size from `least` on that fits, or else `least`.

  Sizes are doubled until one does not fit, or is the largest that is tried, and
  then bisected.
  """
  low, high = least - 1, 0
  while (not high or high - low > 1) and low < MAX_BATCH:
    if is_fitting(size):
      low = size
    else:
      high = size
    size = (low + high) // 2 if high else min(2 * low, MAX_BATCH)
  return max(low, least)

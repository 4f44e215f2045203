"""What links cost, from real transfers.

Latency is half a round trip of a scalar between idle devices. What a transfer
takes of its channel is measured while both devices compute: tensors of
several sizes are sent now and then, and each makes the step longer by `gap +
bytes / bandwidth`. Between processes of one host that work is done by the
cores that compute, so that an idle host would look too good. One tensor is
sent in any case, so that the latency, which a step waits for once, is no part
of the difference.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from tfplace.cost import wire
from tfplace.cost.profile import LinkFit, fit_link
from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Link
from tfplace.measure import link_graphs, messages, runtime

# Bytes of a tensor, and how many of them one step sends each way at most.
LOADS = ((4, 32), (16 << 10, 32), (128 << 10, 16), (1 << 20, 8))
_CHAIN = 8  # round trips in one step
_ROUNDS = 3
_STEPS = 5
TIMEOUT_S = 60.0
_LONG_US = 1e6  # what the transfers of a step may take
_UNHEARD_US = 1e-3  # stands for a transfer that was lost in noise
_SHARED_MEMORY = 1e6  # bytes/us, 1 TB/s: faster than any copy

Way = tuple[str, str]  # from a device to a device


@dataclasses.dataclass(frozen=True)
class Figures:
  """A link's costs; `occupied_us` is bytes -> time per transfer."""

  bandwidth_bytes_per_us: float
  latency_us: float
  gap_us: float
  occupied_us: dict[str, float]

  def link(
    self, way: Way, channel: str | None, on_devices: bool = False
  ) -> Link:
    """A link; `on_devices` where the devices themselves do its work."""
    link = Link(
      *way,
      bandwidth_bytes_per_us=self.bandwidth_bytes_per_us,
      latency_us=self.latency_us,
      gap_us=self.gap_us,
      channel=channel,
      extra={"occupied_us": self.occupied_us},
    )
    more = wire.as_timed(link) if on_devices else {}
    return dataclasses.replace(link, extra={**link.extra, **more})


def duplex_links(
  runner: runtime.Runtime, devices: Sequence[str]
) -> tuple[Link, ...]:
  """A measured link for each ordered pair, on a channel of its own.

  Raises:
    ChildError: a transfer failed.
  """
  ways = itertools.permutations(devices, 2)
  return tuple(measure(runner, [way]).link(way, None) for way in ways)


def loopback_links(
  runner: runtime.Runtime, devices: Sequence[str]
) -> tuple[Link, ...]:
  """Links between alike processes of one host.

  Both directions of a pair share a channel and are measured together. One
  pair is measured and stands for all.

  Raises:
    ChildError: a transfer failed.
  """
  if len(devices) < 2:
    return ()
  first, second = devices[:2]
  figures = measure(runner, [(first, second), (second, first)])
  result = []
  for a, b in itertools.combinations(range(len(devices)), 2):
    for way in ((devices[a], devices[b]), (devices[b], devices[a])):
      result.append(figures.link(way, f"loopback:{a}-{b}", on_devices=True))
  return tuple(result)


def measure(runner: runtime.Runtime, ways: Sequence[Way]) -> Figures:
  """Measures one channel, which is used in all of `ways` at once."""
  latency = _round_trip_us(runner, *ways[0]) / 2
  occupied: dict[int, float] = {}
  for size, most in LOADS:
    count = most
    if len(occupied) > 1:
      count = min(most, int(_LONG_US / _expected_us(occupied, size)))
    if count < 2:
      break  # a slow link: what it has shown will do
    occupied[size] = _occupied_us(runner, ways, size, count)
  fitted = _fit(list(occupied), list(occupied.values()))
  return Figures(
    fitted.bandwidth_bytes_per_us,
    latency,
    gap_us=fitted.latency_us,
    occupied_us={str(size): us for size, us in occupied.items()},
  )


def _expected_us(occupied_us: dict[int, float], size: int) -> float:
  """What a larger transfer takes, if it all grows with the bytes."""
  largest = max(occupied_us)
  return occupied_us[largest] * size / largest


def _fit(sizes_bytes: Sequence[int], times_us: Sequence[float]) -> LinkFit:
  """Rate and offset; where size does not matter, since memory is shared and
  nothing is copied, or cannot be told from noise, a very high rate.

  Times that were lost in noise say nothing, unless all but the largest were:
  then what a transfer takes is all due to its bytes.
  """
  pairs = zip(sizes_bytes, times_us, strict=True)
  heard = {size: us for size, us in pairs if us > _UNHEARD_US}
  if list(heard) == [max(sizes_bytes)]:
    (size, took_us) = heard.popitem()
    return LinkFit(size / took_us, 0.0)
  try:
    return fit_link(list(heard), list(heard.values()))
  except MeasurementError:
    return LinkFit(_SHARED_MEMORY, statistics.median(times_us))


def _round_trip_us(runner: runtime.Runtime, src: str, dst: str) -> float:
  there = _step_us(runner, link_graphs.round_trips(src, dst, _CHAIN))
  here = _step_us(runner, link_graphs.round_trips(src, src, _CHAIN))
  return max(there - here, 0.0) / _CHAIN


def _occupied_us(
  runner: runtime.Runtime, ways: Sequence[Way], size: int, count: int
) -> float:
  """What one transfer adds to a step of busy devices; above 0."""
  busy = link_graphs.busy_transfers(ways, size, count, sent=1)
  sending = link_graphs.busy_transfers(ways, size, count, sent=count)
  # Rounds alternate, so that a busy moment of the host hits both.
  rounds = [
    (_step_us(runner, busy), _step_us(runner, sending)) for _ in range(_ROUNDS)
  ]
  without, with_them = (min(column) for column in zip(*rounds, strict=True))
  each_us = (with_them - without) / ((count - 1) * len(ways))
  return max(each_us, _UNHEARD_US)


def _step_us(runner: runtime.Runtime, graph_def: bytes) -> float:
  """The fastest step that runs the node "last".

  What other processes of the host add is not the link's.
  """
  return min(runner.run(request(graph_def, _STEPS), TIMEOUT_S).step_us)


def request(graph_def: bytes, steps: int) -> messages.StepRequest:
  """Asks for steps of a graph that ends in the node "last"."""
  return messages.StepRequest(
    graph_def=graph_def,
    initializers=(),
    initializer_feeds=(),
    fetches=(),
    targets=(link_graphs.LAST,),
    warmup=2,
    steps=steps,
    traced_steps=0,
    phase_s=TIMEOUT_S,
  )

"""Settings of estimates."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class EstimateConfig:
  """Placers and sizes of an estimate; all defaults are our choice.

  Attributes:
    microbatches: numbers of microbatches, ascending, for cards that do not
      hold the whole step on one device. One is in flight.
    first_margin: share by which a predicted peak must be below the memory for
      its number of microbatches to be traced first.
    unsure_share: share by which a predicted peak may exceed the memory and
      still fit; a step within it is traced.
    max_devices: largest number of devices, as many as a preset has in one host.
    strategies: placers of a step on several devices, tried in order. Each
      takes about a second at most.
    budget_s: time limit of a placer, in seconds.
    max_layers: layers that are listed at the peak.
    max_batch: largest batch that is tried.
    max_weak_predictions: predictions of the largest batch that leave more than
      half of the candidates; after that many, candidates are halved.
    max_traces: batches that a search for the largest batch traces.
  """

  microbatches: tuple[int, ...] = (2, 4, 8)
  first_margin: float = 0.05
  unsure_share: float = 0.03
  max_devices: int = 8
  strategies: tuple[str, ...] = ("pipeline", "m_topo")
  budget_s: float = 5.0
  max_layers: int = 8
  max_batch: int = 1 << 20
  max_weak_predictions: int = 3
  max_traces: int = 40


CONFIG = EstimateConfig()

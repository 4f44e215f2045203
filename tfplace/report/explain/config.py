"""Thresholds of explanations, and how much their text and tables list."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExplainConfig:
  """Thresholds and lengths, chosen for readable explanations.

  Attributes:
    min_gain: Fraction of the step below which a gain is not reported.
    noticed: Ratio above which step times count as different.
    same: Fraction of the step below which a change counts as none.
    model_share: A scope with this fraction of the work is the model, no layer.
    max_model_depth: Most scopes around the layers.
    most_share: Fraction of the work from which the summary of devices divides a
      layer of layers.
    pattern_share: Fraction of the work that defines a pattern of parallelism.
    layer_share: Fraction of a layer's work on its device, tolerating odd ops.
    used: Least use of a device by a microbatch, in equal shares.
    worker_share: Least fraction of microbatch time of a worker's kind.
    max_rows: Rows of a table.
    max_layers: Layers in a sentence.
    max_names: Op names in a sentence.
    max_parts: Devices, groups or stages in a sentence.
    max_blocks: Blocks of a stage's layers in a sentence.
  """

  min_gain: float = 0.01
  noticed: float = 1.005
  same: float = 1e-9
  model_share: float = 0.6
  max_model_depth: int = 4
  most_share: float = 0.2
  pattern_share: float = 0.8
  layer_share: float = 0.9
  used: float = 0.1
  worker_share: float = 0.05
  max_rows: int = 12
  max_layers: int = 3
  max_names: int = 3
  max_parts: int = 4
  max_blocks: int = 2


CONFIG = ExplainConfig()

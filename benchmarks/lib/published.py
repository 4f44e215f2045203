"""The rows of the published tables: models, device counts, and their figures.

Seconds per step as published, for standing beside ours, not for comparing
with: hardware, software and models differ. Sources: GO (Zhou et al., NeurIPS
2020, table 1; some row labels restored) and Placeto (Addanki et al., arXiv
1906.08879, table 1, on K80s).
"""

import dataclasses
from collections.abc import Mapping

OOM = "OOM"
Figure = float | str  # seconds, or OOM
GO_COLUMNS = ("GO", "human", "METIS", "HDP")
PLACETO_COLUMNS = (
  *("Placeto", "expert", "Scotch", "RNN-based", "1 GPU", "CPU only"),
)


@dataclasses.dataclass(frozen=True)
class Row:
  """One model on so many devices.

  Attributes:
    label: as the tables name it.
    model: name in the zoo.
    devices: GPUs.
    sizes: what differs from the model's defaults.
    batch_size: examples per step; None is the model's default.
    published: method -> seconds per step.
    gpus: GPUs of the presets that the row is run on.
  """

  label: str
  model: str
  devices: int
  published: Mapping[str, Figure]
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  batch_size: int | None = None
  gpus: tuple[str, ...] = ("k80", "p100", "v100", "h100")

  def cluster(self, gpu: str) -> str:
    """Name of the preset."""
    return f"{gpu}x{self.devices}"


def _go(
  label: str,
  model: str,
  devices: int,
  figures: tuple[Figure, ...],
  batch_size: int | None = None,
  **sizes: int,
) -> Row:
  published = dict(zip(GO_COLUMNS, figures, strict=True))
  return Row(label, model, devices, published, sizes, batch_size)


def _placeto(
  label: str,
  model: str,
  devices: int,
  figures: tuple[Figure, ...],
  gpus: tuple[str, ...] = ("k80",),
) -> Row:
  published = dict(zip(PLACETO_COLUMNS, figures, strict=True))
  return Row(label, model, devices, published, gpus=gpus)


GO_ROWS = (
  _go("2-layer RNNLM", "rnnlm", 2, (0.173, 0.192, 0.355, 0.191), layers=2),
  _go("4-layer RNNLM", "rnnlm", 4, (0.210, 0.239, 0.503, 0.251), layers=4),
  _go("8-layer RNNLM", "rnnlm", 8, (0.320, 0.332, OOM, 0.764), layers=8),
  _go("2-layer GNMT", "gnmt", 2, (0.301, 0.384, 0.344, 0.327), layers=2),
  _go("4-layer GNMT", "gnmt", 4, (0.350, 0.469, 0.466, 0.432), layers=4),
  _go("8-layer GNMT", "gnmt", 8, (0.440, 0.562, OOM, 0.693), layers=8),
  _go(
    "2-layer Transformer-XL", "transformer_xl", 2,
    (0.223, 0.268, 0.37, 0.262), layers=2,
  ),
  _go(
    "4-layer Transformer-XL", "transformer_xl", 4,
    (0.230, 0.27, OOM, 0.259), layers=4,
  ),
  _go(
    "8-layer Transformer-XL", "transformer_xl", 8,
    (0.350, 0.46, OOM, 0.425), layers=8,
  ),
  _go("Inception b32", "inception_v3", 2, (0.229, 0.312, OOM, 0.301), 32),
  _go("Inception b64", "inception_v3", 2, (0.423, 0.731, OOM, 0.498), 64),
  _go("AmoebaNet", "amoebanet_d", 4, (0.394, 0.44, 0.426, 0.418)),
  _go(
    "2-stack 18-layer WaveNet", "wavenet", 2,
    (0.317, 0.376, OOM, 0.354), stacks=2, layers_per_stack=18,
  ),
  _go(
    "4-stack 36-layer WaveNet", "wavenet", 4,
    (0.659, 0.988, OOM, 0.721), stacks=4, layers_per_stack=36,
  ),
)  # fmt: skip

PLACETO_ROWS = (
  _placeto(
    "Inception-V3", "inception_v3", 2, (1.18, 1.28, 1.54, 1.17, 1.56, 12.54),
  ),
  _placeto(
    "Inception-V3", "inception_v3", 4,
    (1.13, 1.15, 1.74, 1.19, 1.56, 12.54), ("k80", "v100"),
  ),
  _placeto("NMT", "nmt", 2, (2.32, OOM, OOM, 2.35, OOM, 33.5)),
  _placeto(
    "NMT", "nmt", 4, (2.63, OOM, OOM, 3.15, OOM, 33.5), ("k80", "v100"),
  ),
  _placeto("NASNet", "nasnet", 2, (0.86, 0.86, 1.28, 0.89, 1.28, 37.5)),
  _placeto("NASNet", "nasnet", 4, (0.74, 0.84, 1.22, 0.76, 1.28, 37.5)),
)  # fmt: skip

ROWS = (*GO_ROWS, *PLACETO_ROWS)

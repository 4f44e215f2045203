"""The training set, the development set and the test set of graphs.

The policy `ordered` was trained on training rows. Anything may be chosen on
development rows: the rows of the published tables
(GO's on P100s), the test members of the synthetic families, five models of
`reference.py` in microbatches, and the models of `development.py` and
`second_holdout.py`, which were test sets once.

Nothing was chosen on test rows, the models of `holdout.py` on 4 to 8 devices.
`learned/run_holdout.py --set=test` has placed them once (`holdout_third` in the
results). If they inform a choice, they belong to the development set, and the
next evidence needs another test set.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lib import one_gpu, published
from benchmarks.microbatches import run_models
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.core.recompute import RecomputeConfig
from tfplace.learned import synthetic
from tfplace.models import families
from tfplace.plan import sources

_GPU = "p100"  # of the rows that have no cluster of their own


@dataclasses.dataclass(frozen=True)
class PublishedRow:
  """A published row, or a member of a family.

  Attributes:
    row: of `lib/published.py`.
  """

  row: published.Row

  @property
  def label(self) -> str:
    return f"{self.row.label} ({self.row.cluster(_GPU)})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The training step on its devices; from the cache if it is there."""
    cluster = self.row.cluster(_GPU)
    graph = sources.extract(
      self.row.model,
      cluster,
      batch_size=self.row.batch_size,
      sizes=self.row.sizes,
      cache_dir=cache_dir,
    )
    return Problem(graph, cluster_preset(cluster))


@dataclasses.dataclass(frozen=True)
class TrainedRow:
  """A model that people train, in microbatches.

  Attributes:
    module: of this folder, whose `MODELS` has the model.
    model: its name there.
    microbatches: 1 leaves the step whole.
    cluster: name of a preset.
    recomputes: True to recompute all activations.
  """

  module: str
  model: str
  microbatches: int
  cluster: str
  recomputes: bool = False

  @property
  def label(self) -> str:
    how = ", recomputed" if self.recomputes else ""
    return f"{self.model} in {self.microbatches}{how} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The training step on its devices; from the cache if it is there."""
    graphs = run_models.Graphs(
      self.model, [self.cluster], cache_dir, self.module
    )
    split = dataclasses.replace(
      graphs.allows,
      count=self.microbatches,
      recompute=RecomputeConfig(everything=self.recomputes),
    )
    return graphs.problem(split, self.cluster)


@dataclasses.dataclass(frozen=True)
class ZooRow:
  """A whole step of a zoo model in other sizes than the published ones.

  Attributes:
    model: name in the zoo.
    cluster: name of a preset.
    sizes: what differs from the model's defaults.
  """

  model: str
  cluster: str
  sizes: Mapping[str, int]

  @property
  def label(self) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
    return f"{self.model}, {sizes} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The training step on its devices; from the cache if it is there."""
    graph = sources.extract(
      self.model, self.cluster, sizes=self.sizes, cache_dir=cache_dir
    )
    return Problem(graph, cluster_preset(self.cluster))


@dataclasses.dataclass(frozen=True)
class SyntheticRow:
  """A random step of `tfplace.learned.synthetic`, without layers or axes."""

  seed: int
  cluster: str

  @property
  def label(self) -> str:
    return f"synthetic {self.seed} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The step on its devices."""
    del cache_dir
    cluster = cluster_preset(self.cluster)
    step = synthetic.training_step(self.seed)
    return Problem(synthetic.on_kinds(step, cluster), cluster)


SetRow = PublishedRow | TrainedRow | ZooRow | SyntheticRow


def _rows(module: str, *rows: tuple[Any, ...]) -> list[TrainedRow]:
  return [TrainedRow(module, *row) for row in rows]


def _zoo(*rows: tuple[str, str, Mapping[str, int]]) -> list[ZooRow]:
  return [ZooRow(*row) for row in rows]


TRAINING: Sequence[SetRow] = (
  *_rows(
    "reference",
    ("gpt_medium", 4, "v100x4"),
    ("gpt_medium", 4, "v100x2+p100x2"),
    ("gpt_medium", 8, "a100x8"),
    ("gpt_small", 4, "p100x8"),
    ("gpt_small", 4, "k80x4", True),
    ("unet", 4, "v100x4"),
    ("unet", 4, "p100x2"),
    ("resnet50_gn", 4, "v100x4"),
    ("resnet50_gn", 8, "a100x4+v100x4"),
    ("bert_base", 4, "v100x4"),
    ("bert_base", 4, "2*v100x4"),
    ("bert_small", 8, "p100x4"),
    ("bert_small", 4, "v100x4", True),
    ("vit", 4, "k80x2"),
    ("vit", 8, "a100x8"),
    ("translator", 2, "p100x8"),
    ("translator", 4, "v100x4"),
    ("mixture_of_experts", 2, "v100x4"),
    ("gpt_small", 1, "v100x4"),
    ("bert_small", 1, "p100x4"),
    ("unet", 1, "p100x2"),
    ("vit", 1, "a100x8"),
    ("translator", 1, "v100x2+p100x2"),
    ("resnet50_gn", 1, "v100x4"),
    ("mixture_of_experts", 1, "2*v100x2"),
  ),
  *_rows(
    "development",
    ("mixer", 8, "a100x8"),
    ("conformer", 4, "p100x4"),
    ("densenet", 2, "v100x4"),
    ("conformer", 1, "k80x4"),
    ("densenet", 1, "v100x4"),
  ),
  *_zoo(
    ("rnnlm", "p100x4", {"layers": 3, "length": 20}),
    ("rnnlm", "v100x8", {"layers": 6, "length": 14}),
    ("gnmt", "v100x2", {"layers": 3, "length": 12}),
    ("gnmt", "p100x4", {"layers": 5, "length": 10}),
    ("transformer_xl", "2*v100x2", {"layers": 3, "segments": 4}),
    ("transformer_xl", "v100x4", {"layers": 5, "segments": 3}),
    ("inception_v3", "k80x4", {"image_size": 139}),
    ("cifar10", "p100x4", {"index": 0}),
    ("cifar10", "v100x2+p100x2", {"index": 1}),
    ("cifar10", "a100x8", {"index": 2}),
    ("ptb", "v100x4", {"index": 0}),
    ("ptb", "k80x2", {"index": 1}),
    ("ptb", "p100x8", {"index": 2}),
    ("nmt_family", "p100x4", {"index": 0}),
    ("nmt_family", "v100x2", {"index": 1}),
  ),
  *(
    SyntheticRow(seed, cluster)
    for seed, cluster in enumerate(
      ("v100x4", "p100x8", "k80x4", "v100x2+p100x2", "a100x8", "v100x2") * 2
    )
  ),
)


# The first test set, and the second.
LOOKED_AT: Sequence[SetRow] = (
  *_rows(
    "development",
    ("llama", 8, "v100x4"),
    ("mixer", 8, "a100x8"),
    ("conformer", 4, "p100x4"),
    ("diffusion", 4, "h100x8"),
    ("weather", 1, "p100x2"),
    ("convnext", 8, "v100x8"),
    ("densenet", 2, "k80x2"),
    ("efficientnet", 4, "2*a100x8"),
  ),
  *_rows(
    "second_holdout",
    ("palm", 8, "a100x8"),
    ("gmlp", 8, "2*v100x4"),
    ("wav2vec", 8, "v100x4"),
    ("perceiver", 4, "p100x4"),
    ("swin", 8, "v100x8"),
    ("inception_resnet", 2, "k80x4"),
    ("xception", 8, "h100x8"),
    ("resnet152", 4, "p100x2"),
  ),
)


DEVELOPMENT: Sequence[SetRow] = (
  *(PublishedRow(row) for row in published.GO_ROWS),
  *(
    PublishedRow(row)
    for family in families.FAMILIES
    for row in one_gpu.members_of(family)
  ),
  *_rows(
    "reference",
    ("gpt_small", 4, "v100x4"),
    ("gpt_medium", 4, "v100x4"),
    ("gpt_medium", 8, "v100x4"),
    ("unet", 4, "v100x4"),
    ("resnet50_gn", 4, "v100x4"),
    ("resnet50_gn", 8, "v100x4"),
    ("bert_base", 4, "v100x4"),
    ("bert_base", 8, "v100x4"),
  ),
  *LOOKED_AT,
)
# Half of them whole steps; no model, GPU or cluster is of a training row.
TEST: Sequence[SetRow] = _rows(
  "holdout",
  ("retnet", 8, "l4x8"),
  ("segformer", 4, "t4x4"),
  ("hourglass", 4, "2*a10x2"),
  ("detector", 4, "t4x2+l4x2"),
  ("clip", 1, "h100x4"),
  ("dlrm", 1, "a10x4"),
  ("deep_speech", 1, "l4x4"),
  ("nbeats", 1, "2*t4x4"),
)
SETS = {"development": DEVELOPMENT, "test": TEST}

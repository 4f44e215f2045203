"""The development set and the test set of graphs.

Anything may be chosen on development rows: the rows of the published tables
(GO's on P100s), the test members of the synthetic families, five models of
`reference.py` in microbatches, and the models of `development.py`.

Nothing was chosen on test rows, the models of `holdout.py` with 30,000 ops and
more on 2 to 16 devices. `learned/run_holdout.py --set=test` places them once,
at the end; a row that was looked at belongs to the development set from then
on. The other five models of `reference.py` are in neither set.
"""

import dataclasses
from collections.abc import Sequence

from benchmarks.lib import one_gpu, published
from benchmarks.microbatches import run_models
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
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
  """

  module: str
  model: str
  microbatches: int
  cluster: str

  @property
  def label(self) -> str:
    return f"{self.model} in {self.microbatches} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The training step on its devices; from the cache if it is there."""
    graphs = run_models.Graphs(
      self.model, [self.cluster], cache_dir, self.module
    )
    split = dataclasses.replace(graphs.allows, count=self.microbatches)
    return graphs.problem(split, self.cluster)


SetRow = PublishedRow | TrainedRow


def _rows(module: str, *rows: tuple[str, int, str]) -> list[TrainedRow]:
  return [TrainedRow(module, *row) for row in rows]


# The first test set.
LOOKED_AT: Sequence[SetRow] = _rows(
  "development",
  ("llama", 8, "v100x4"),
  ("mixer", 8, "a100x8"),
  ("conformer", 4, "p100x4"),
  ("diffusion", 4, "h100x8"),
  ("weather", 1, "p100x2"),
  ("convnext", 8, "v100x8"),
  ("densenet", 2, "k80x2"),
  ("efficientnet", 4, "2*a100x8"),
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
TEST: Sequence[SetRow] = _rows(
  "holdout",
  ("palm", 8, "a100x8"),
  ("gmlp", 8, "2*v100x4"),
  ("wav2vec", 8, "v100x4"),
  ("perceiver", 4, "p100x4"),
  ("swin", 8, "v100x8"),
  ("inception_resnet", 2, "k80x4"),
  ("xception", 8, "h100x8"),
  ("resnet152", 4, "p100x2"),
)
SETS = {"development": DEVELOPMENT, "test": TEST}

"""Steps of models on clusters, and the sets of them for the policy.

`TRAINING` has steps that the shipped `ordered` was trained on, and steps in
units, on which training gained nothing. Anything may be chosen on
`DEVELOPMENT`: the rows of GO's published table (Zhou et al., NeurIPS 2020) and
steps of other models. `HOLDOUT`, the fourth, was placed after all choices, and
again on later code: a choice that its rows suggest needs models and devices of
no set as evidence. The code of the first three is gone (LLaMA, PaLM, gMLP,
wav2vec 2.0, Perceiver, Swin, ConvLSTM, DDPM, RetNet, SegFormer, Hourglass,
EfficientDet, CLIP, DLRM, Deep Speech, N-BEATS).
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks import lib, random_steps
from tfplace import cost
from tfplace.graph import Cluster, OpGraph, Problem
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.graph.recompute import RecomputeConfig
from tfplace.hardware.presets import cluster_preset
from tfplace.plan import graph_cache, graph_keys
from tfplace.plan.config import PlanConfig
from tfplace.plan.source import ModelSource, open_source
from tfplace.plan.steps import Steps

if TYPE_CHECKING:
  from benchmarks.models import Trained
  from tfplace.extraction.traced import TracedStep

_MODULE = pathlib.Path(__file__).with_name("models.py")


def trained(name: str) -> "Trained":
  """Returns the model of that name.

  Raises:
    UsageError: there is none.
  """
  from benchmarks import models  # Imports TensorFlow.

  known = {**models.MODELS, **models.DEVELOPMENT, **models.HOLDOUT}
  lib.check_names("models", [name], known)
  return known[name]


@dataclasses.dataclass
class Graphs:
  """Graphs of a model's step, by microbatches and cluster.

  A step is traced once for all clusters. Cached graphs are known by the bytes
  of the module that has the models.

  Attributes:
    name: of the model.
    clusters: names of clusters, whose devices are costed.
    cache_dir: where graphs are kept between runs, or nothing.
    find: returns the cluster of a name.
    compile_units: whether steps are of units that XLA compiles.
    precision: dtype policy of the model.
  """

  name: str
  clusters: Sequence[str]
  cache_dir: str | None
  find: Callable[[str], Cluster] = cluster_preset
  compile_units: bool = False
  precision: str = "float32"
  _found: dict[tuple[VariantConfig, str], OpGraph] = dataclasses.field(
    default_factory=dict
  )

  def problem(self, microbatches: VariantConfig, cluster: str) -> Problem:
    """The step in microbatches, with the cluster's costs.

    Raises:
      ExtractionError: it cannot be split.
    """
    if (microbatches, cluster) not in self._found:
      self._load(microbatches)
    return Problem(self._found[microbatches, cluster], self.find(cluster))

  @property
  def allows(self) -> VariantConfig:
    """The whole step, with what its microbatches may do."""
    return VariantConfig(
      allow_batch_statistics=trained(self.name).has_batch_statistics
    )

  def _load(self, microbatches: VariantConfig) -> None:
    model = trained(self.name)
    cache = graph_cache.GraphCache(self.cache_dir) if self.cache_dir else None
    source = ModelSource(
      "module",
      str(_MODULE),
      batch_size=model.batch_size,
      sizes={f"{self.name} {self.precision}": 1},
    )
    began, traced = time.perf_counter(), None
    for name in self.clusters:
      cluster = self.find(name)
      key = cache and graph_keys.content_key(
        source, cluster, microbatches, compile_units=self.compile_units
      )
      graph = cache.load(key) if cache and key else None
      if graph is None:
        traced = traced or trace(model, microbatches, self.precision)
        graph = cost.op_graph(traced, cluster, compile_units=self.compile_units)
        if cache and key:
          cache.store(key, graph)
      self._found[microbatches, name] = graph
    print(
      f"{self.name}, {microbatches.count} microbatches: {graph.num_ops:,} ops"
      f" in {time.perf_counter() - began:.0f} s",
      flush=True,
    )


@functools.lru_cache(maxsize=1)  # `Graphs` without and with XLA share it.
def trace(
  model: "Trained", microbatches: VariantConfig, precision: str = "float32"
) -> "TracedStep":
  """Traces the step of a model that is built for it, and then let go."""
  import keras

  from tfplace.variants import keras_step

  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(precision)
  try:
    with keras_step.fresh_names():
      return keras_step.trace_keras(
        model.build(), model.batch_size, microbatches=microbatches
      )
  finally:
    keras.config.set_dtype_policy(before)


@dataclasses.dataclass(frozen=True)
class TrainedRow:
  """A model that people train.

  Attributes:
    model: its name in `models.py`.
    microbatches: 1 leaves the step whole.
    cluster: name of a preset.
    recomputes: True to recompute all activations.
    compiles: True for a step of units that XLA compiles.
  """

  model: str
  microbatches: int
  cluster: str
  recomputes: bool = False
  compiles: bool = False

  @property
  def label(self) -> str:
    how = ", recomputed" if self.recomputes else ""
    how += ", XLA" if self.compiles else ""
    return f"{self.model} in {self.microbatches}{how} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The training step on its devices; from the cache if it is there."""
    graphs = Graphs(
      self.model, [self.cluster], cache_dir, compile_units=self.compiles
    )
    split = dataclasses.replace(
      graphs.allows,
      count=self.microbatches,
      recompute=RecomputeConfig(everything=self.recomputes),
    )
    return graphs.problem(split, self.cluster)


@dataclasses.dataclass(frozen=True)
class ZooRow:
  """A whole step of a zoo model.

  Attributes:
    model: name in the zoo.
    cluster: name of a preset.
    sizes: differences from the model's defaults.
    batch_size: examples of a step; None is the model's default.
  """

  model: str
  cluster: str
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  batch_size: int | None = None
  microbatches, compiles = 1, False

  @property
  def label(self) -> str:
    sizes = "".join(f", {name} {size}" for name, size in self.sizes.items())
    batch = f", batch {self.batch_size}" if self.batch_size else ""
    return f"{self.model}{sizes}{batch} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The training step on its devices; from the cache if it is there."""
    cluster, config = cluster_preset(self.cluster), PlanConfig()
    cache = graph_cache.GraphCache(cache_dir) if cache_dir else None
    source = open_source(
      self.model, batch_size=self.batch_size, sizes=self.sizes
    )
    graph, _ = Steps(source, cluster, config, cache).graph(WHOLE)
    return Problem(graph, cluster)


@dataclasses.dataclass(frozen=True)
class SyntheticRow:
  """A random step of `random_steps`, without layers or axes."""

  seed: int
  cluster: str
  microbatches, compiles = 1, False

  @property
  def label(self) -> str:
    return f"synthetic {self.seed} ({self.cluster})"

  def problem(self, cache_dir: str | None) -> Problem:
    """The step on its devices."""
    del cache_dir
    cluster = cluster_preset(self.cluster)
    step = random_steps.training_step(self.seed)
    return Problem(random_steps.on_kinds(step, cluster), cluster)


SetRow = TrainedRow | ZooRow | SyntheticRow


def _trained(*texts: str) -> list[TrainedRow]:
  """Returns rows from "model microbatches cluster".

  After it, "r" recomputes, and "xla" compiles units.
  """
  found = []
  for text in texts:
    model, count, cluster, *more = text.split()
    how = {"recomputes": "r" in more, "compiles": "xla" in more}
    found.append(TrainedRow(model, int(count), cluster, **how))
  return found


TRAINING: Sequence[SetRow] = (
  *_trained(
    *("gpt_medium 4 v100x4", "gpt_medium 4 v100x2+p100x2"),
    *("gpt_medium 8 a100x8", "gpt_small 4 p100x8", "gpt_small 4 k80x4 r"),
    *("gpt_small 1 v100x4", "unet 4 v100x4", "unet 4 p100x2", "unet 1 p100x2"),
    *("resnet50_gn 4 v100x4", "resnet50_gn 8 a100x4+v100x4"),
    *("resnet50_gn 1 v100x4", "bert_base 4 v100x4", "bert_base 4 2*v100x4"),
    *("bert_small 8 p100x4", "bert_small 4 v100x4 r", "bert_small 1 p100x4"),
    *("vit 4 k80x2", "vit 8 a100x8", "vit 1 a100x8", "translator 2 p100x8"),
    *("translator 4 v100x4", "translator 1 v100x2+p100x2"),
    *("mixture_of_experts 2 v100x4", "mixture_of_experts 1 2*v100x2"),
    *("densenet 2 v100x4", "densenet 1 v100x4"),
    *("gpt_medium 4 v100x4 xla", "gpt_medium 1 a100x4 xla"),
    *("gpt_medium 8 4*v100x2 xla", "gpt_small 8 a100x8 xla"),
    *("bert_base 4 2*v100x4 xla", "bert_base 1 v100x2+p100x2 xla"),
    *("bert_small 2 p100x4 xla", "vit 4 a100x4+v100x4 xla", "vit 1 v100x4 xla"),
    *("translator 4 v100x4 xla", "translator 1 p100x4 xla"),
    *("unet 4 v100x4 xla", "unet 1 a100x2 xla", "resnet50_gn 4 a100x4 xla"),
    *("resnet50_gn 1 2*a100x2 xla", "mixture_of_experts 2 v100x4 xla"),
    *("mixture_of_experts 1 4*v100x2 xla", "densenet 1 v100x4 xla"),
  ),
  ZooRow("rnnlm", "p100x4", {"layers": 3, "length": 20}),
  ZooRow("rnnlm", "v100x8", {"layers": 6, "length": 14}),
  ZooRow("gnmt", "v100x2", {"layers": 3, "length": 12}),
  ZooRow("gnmt", "p100x4", {"layers": 5, "length": 10}),
  ZooRow("transformer_xl", "2*v100x2", {"layers": 3, "segments": 4}),
  ZooRow("transformer_xl", "v100x4", {"layers": 5, "segments": 3}),
  ZooRow("inception_v3", "k80x4", {"image_size": 139}),
  *(
    SyntheticRow(seed, cluster)
    for seed, cluster in enumerate(
      ("v100x4", "p100x8", "k80x4", "v100x2+p100x2", "a100x8", "v100x2") * 2
    )
  ),
)
# The rows of GO's table, on as many GPUs as published.
PUBLISHED: Sequence[ZooRow] = (
  *(
    ZooRow(model, f"p100x{layers}", {"layers": layers})
    for model in ("rnnlm", "gnmt", "transformer_xl")
    for layers in (2, 4, 8)
  ),
  ZooRow("inception_v3", "p100x2", batch_size=32),
  ZooRow("inception_v3", "p100x2", batch_size=64),
  ZooRow("amoebanet_d", "p100x4"),
  ZooRow("wavenet", "p100x2", {"stacks": 2, "layers_per_stack": 18}),
  ZooRow("wavenet", "p100x4", {"stacks": 4, "layers_per_stack": 36}),
)
DEVELOPMENT: Sequence[SetRow] = (
  *PUBLISHED,
  *_trained(
    *("gpt_small 4 v100x4", "gpt_medium 8 v100x4", "unet 4 v100x4"),
    *("resnet50_gn 8 v100x4", "bert_base 4 v100x4", "convnext 8 v100x8"),
    *("densenet 2 k80x2", "efficientnet 4 2*a100x8", "xception 8 h100x8"),
    *("inception_resnet 2 k80x4", "resnet152 4 p100x2"),
    *("gpt_small 4 a100x4 xla", "gpt_medium 8 2*v100x4 xla"),
    *("bert_base 1 a100x4 xla", "convnext 4 v100x8 xla"),
    *("efficientnet 4 2*a100x8 xla", "inception_resnet 1 v100x4 xla"),
    "xception 1 p100x2 xla",
  ),
)
# No model or GPU is of another set.
HOLDOUT: Sequence[SetRow] = _trained(
  *("whisper 4 a30x4 xla", "whisper 1 2*a30x2 xla", "bart 4 rtx-3090x4"),
  *("t5 8 2*l40sx4 xla", "t5 1 rtx-4090x4 xla", "deberta 4 rtx-a6000x4 xla"),
  *("gemma 1 a40x4", "bloom 8 h200x8 xla", "vgg 4 rtx-2080tix2+p40x2"),
  *("mobilenet 1 rtx-3090x2", "nasnet 1 b200x4 xla", "nasnet 4 4*gh200x1 xla"),
)
SETS = {
  "published": PUBLISHED,
  "development": DEVELOPMENT,
  "holdout": HOLDOUT,
  "training": TRAINING,
}

"""Sources of steps: the model zoo, model files and Keras models."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfplace.errors import ExtractionError, TfplaceError, shown
from tfplace.graph.cluster import Cluster
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.graph.progress import Progress, silent

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep

GRAPH = "graph"  # An op graph with costs, which is not traced.
KINDS = ("model", "keras_model", "saved_model", "graph_def", GRAPH)
MICROBATCH_KINDS = KINDS[:2]  # Sources with microbatches.


@dataclasses.dataclass
class ModelSource:
  """Source whose steps are traced also at several sizes and precisions.

  Models that a trace builds are kept for the next one.

  Attributes:
    kind: kind of the source, one of `KINDS`.
    name: name of a model, or the path of a file or directory.
    training: whether to trace the training step or inference. Ignored for a
      SavedModel and a GraphDef.
    batch_size: examples per step; None selects the model's default.
    sizes: additional sizes of a zoo model.
    sample: sample batch of a Keras model or file, or a `GivenBatch`.
    allow_side_effects: whether a SavedModel or GraphDef may contain ops that
      access files, processes or Python. TensorFlow may run them on loading.
    model: the Keras model if it is built or loaded, or None.
    notes: sentences about what the source assumed.
  """

  kind: str
  name: str
  training: bool = True
  batch_size: int | None = None
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  sample: Any = None
  allow_side_effects: bool = False
  model: Any = None
  notes: tuple[str, ...] = ()
  _built: dict[str | None, Any] = dataclasses.field(
    default_factory=dict, repr=False
  )

  @property
  def takes_microbatches(self) -> bool:
    """Returns whether a training step may be split into microbatches."""
    return self.kind in MICROBATCH_KINDS

  @property
  def precision(self) -> str:
    """Name of the model's own dtype policy, or "" if it has none."""
    if not self.takes_microbatches:
      return ""
    import keras

    from tfplace.plan import precisions

    if self.model is not None:
      return precisions.policy_of(self.model)
    return str(keras.config.dtype_policy().name)

  def is_compiled_on(self, cluster: Cluster) -> bool:
    """Returns whether Keras compiles the step, as on hosts with GPUs."""
    return self.kind == "keras_model" and not cluster.is_cpu.all()

  def loaded(self, on_stage: Progress = silent) -> "ModelSource":
    """Returns the source with its Keras model, for several traces.

    A model that is not compiled is traced for inference, with a note.
    """
    if self.kind != "keras_model":
      return self
    model = self.model
    if model is None:
      on_stage(f"loading {self.name}")
      from tfplace.variants import keras_step

      with keras_step.fresh_names():
        model = keras_step.load_keras_file(self.name, self.training)
    source = dataclasses.replace(self, name=model.name, model=model)
    if self.training and not getattr(model, "compiled", False):
      source.training = False
      source.notes = (
        f"model {model.name!r} is not compiled, so this is its inference step;"
        " compile it with loss and optimizer for the training step",
      )
    return source

  def trace(
    self,
    variant: VariantConfig = WHOLE,
    *,
    batch_size: int | None = None,
    precision: str | None = None,
    on_stage: Progress = silent,
  ) -> "TracedStep":
    """Traces a step.

    Args:
      variant: variant of the training step.
      batch_size: examples per step; None selects those of the source.
      precision: dtype policy in which the model is built; None is its own.
      on_stage: called at the start of each stage.

    Raises:
      ExtractionError: the step cannot be traced. The message names the file or
        model and the problem.
    """
    batch_size = batch_size or self.batch_size
    if self.model is None:
      verb = "building" if self.kind == "model" else "loading"
      on_stage(f"{verb} {self.name}")
    check_variant(variant, self.kind, self.name, self.training)
    if self.kind == GRAPH:
      raise ExtractionError(
        f"{self.name!r} is a graph with costs of its own batch, and no model to"
        " trace: name the model"
      )
    # A command loads TensorFlow in that stage, without its notices.
    from tfplace.extraction.functions import trace_saved_model
    from tfplace.extraction.graph_def import trace_graph_def

    if self.takes_microbatches:
      return self._trace_keras(variant, batch_size, precision, on_stage)
    if precision:
      raise ExtractionError(
        f"precision {shown(precision)} is asked for, and {self.name!r} is a"
        " graph that was traced already; leave the precision out"
      )
    is_graph = self.kind == "graph_def"
    trace: Any = trace_graph_def if is_graph else trace_saved_model
    return trace(
      self.name, batch_size, allow_side_effects=self.allow_side_effects
    )

  def _trace_keras(
    self,
    variant: VariantConfig,
    batch_size: int | None,
    precision: str | None,
    on_stage: Progress,
  ) -> "TracedStep":
    from tfplace.plan import precisions
    from tfplace.variants.keras_step import (
      fresh_names,
      trace_keras,
      trace_keras_file,
    )

    kind = "train" if self.training else "predict"
    options: dict[str, Any] = {"on_stage": on_stage, "microbatches": variant}
    if self.model is not None:
      model = self._in_precision(precision, on_stage)
      options["sample"] = self.sample
      return trace_keras(model, batch_size, kind=kind, **options)
    with fresh_names(), precisions.policy_scope(precision):
      if self.kind == "keras_model":
        return trace_keras_file(
          self.name,
          batch_size,
          training=self.training,
          sample=self.sample,
          **options,
        )
      zoo = self._built_zoo(batch_size, precision)
      size, sample = batch_size or zoo.batch_size, zoo.sample(seed=0)
      traced = trace_keras(zoo.model, size, kind=kind, sample=sample, **options)
    return dataclasses.replace(traced, name=self.name)

  def _built_zoo(self, batch_size: int | None, precision: str | None) -> Any:
    """Returns a zoo model of this batch size, built at most once."""
    from tfplace import models
    from tfplace.extraction.keras_inputs import static_batch_size

    zoo = self._built.get(precision)
    fixed = zoo and static_batch_size(zoo.model)
    if zoo is None or (batch_size and fixed not in (None, batch_size)):
      zoo = models.build(self.name, batch_size, **self.sizes)
      self._built[precision] = zoo
    return zoo

  def _in_precision(self, precision: str | None, on_stage: Progress) -> Any:
    """Returns the Keras model, or its copy in another precision."""
    if precision is None or precision == self.precision:
      return self.model
    if precision not in self._built:
      from tfplace.plan import precisions

      on_stage(f"rebuilding in {precision}")
      self._built[precision] = precisions.rebuilt(self.model, precision)
    return self._built[precision]


def open_source(
  model: Any,
  *,
  kind: str | None = None,
  training: bool = True,
  batch_size: int | None = None,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  allow_side_effects: bool = False,
) -> ModelSource:
  """Returns the source of a model, whose arguments it checks.

  Args:
    model: a Keras model, the name of a zoo model, or the path of a model file.
    kind: kind of a name or path, one of `KINDS`; None infers it.
    training: see `ModelSource`, as the others.

  Raises:
    TfplaceError: an argument does not suit the model.
  """
  if not isinstance(model, str | os.PathLike):
    if sizes:
      raise ExtractionError(
        f"sizes {sorted(sizes)} are given for a model that is built already"
      )
    if not hasattr(model, "train_step"):
      raise TfplaceError(
        f"model is a {type(model).__name__}; it must be a Keras model, the name"
        " of a zoo model, or the path of a model file"
      )
    return ModelSource(
      "keras_model",
      model.name,
      training,
      batch_size,
      sample=sample,
      model=model,
    )
  name = os.fspath(model)
  kind = kind or kind_of(name)
  sizes = dict(sizes or {})
  if sizes and kind != "model":
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for {name!r}, which is no zoo model"
    )
  if sample is not None and kind != "keras_model":
    raise ExtractionError(
      f"a batch is described for {name!r}, which is no Keras file and says its"
      " own shapes"
    )
  if "batch_size" in sizes:
    raise ExtractionError(
      f"model {name!r}: batch_size={sizes['batch_size']} is given among its"
      " sizes; give the batch size by itself (--batch_size)"
    )
  return ModelSource(
    kind, name, training, batch_size, sizes, sample, allow_side_effects
  )


def check_variant(
  variant: VariantConfig, kind: str, name: str, training: bool
) -> None:
  """Raises ExtractionError if such a source has no such step variant."""
  asked = {
    "recompute": None if variant.recompute.is_none else variant.recompute,
    "microbatches": None if variant.is_whole else variant.count,
    "max_in_flight": variant.max_in_flight,
  }
  given = [option for option, value in asked.items() if value is not None]
  takes_microbatches = kind in MICROBATCH_KINDS
  if given and not (takes_microbatches and training):
    what = (
      "an inference step"
      if takes_microbatches
      else "a graph that was traced already"
    )
    raise ExtractionError(
      f"{given[0]} is {asked[given[0]]}, and {name!r} ({kind}) is {what}:"
      f" leave {given[0]} out, which is for training steps of Keras models and"
      " of the zoo"
    )


def kind_of(source: str) -> str:
  """Returns the kind of a source, one of `KINDS`, by its name or path."""
  if source.endswith((".keras", ".h5")):
    return "keras_model"
  if source.endswith((".pb", ".pbtxt")):
    return "graph_def"
  if source.endswith((".json", ".json.gz")):
    return GRAPH
  return "saved_model" if os.path.isdir(source) else "model"

"""Sources of steps: Keras models, the model zoo and model files."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfplace.core.cluster import Cluster
from tfplace.core.microbatches import WHOLE, VariantConfig
from tfplace.core.op_graph import XLA
from tfplace.core.progress import Progress, silent
from tfplace.errors import ExtractionError, TfplaceError, shown
from tfplace.plan.config import AUTO

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep

KINDS = ("model", "keras_model", "saved_model", "graph_def")
MICROBATCH_KINDS = KINDS[:2]  # Sources with microbatches.


@dataclasses.dataclass
class ModelSource:
  """Model whose steps are traced, also at several sizes and precisions.

  Models that a trace builds are kept for the next one.

  Attributes:
    kind: kind of the source, one of `KINDS`.
    name: name of a model, or the path of a file or directory.
    training: whether to trace the training step or inference. Ignored for a
      SavedModel and a GraphDef.
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
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  sample: Any = None
  allow_side_effects: bool = False
  model: Any = None
  notes: tuple[str, ...] = ()
  _built: dict[str | None, Any] = dataclasses.field(
    default_factory=dict, repr=False
  )

  @property
  def can_split(self) -> bool:
    """Returns whether a training step may be split into microbatches."""
    return self.kind in MICROBATCH_KINDS

  @property
  def precision(self) -> str:
    """Name of the model's own dtype policy, or "" if it has none."""
    if not self.can_split:
      return ""
    import keras

    from tfplace.plan import precisions

    if self.model is not None:
      return precisions.policy_of(self.model)
    return str(keras.config.dtype_policy().name)

  def compiles(self, compile: str, cluster: Cluster) -> bool:
    """Returns whether XLA compiles the step, which "auto" leaves to Keras.

    Keras compiles the steps of its models on hosts with GPUs.
    """
    if compile != AUTO:
      return compile == XLA
    has_gpus = any(not device.is_cpu for device in cluster.devices)
    return self.kind == "keras_model" and has_gpus

  def loaded(self, on_stage: Progress = silent) -> "ModelSource":
    """Returns the source with its Keras model, for several traces.

    A model that is not compiled is traced for inference, with a note.

    Raises:
      ExtractionError: the Keras file is missing or damaged.
    """
    if self.kind != "keras_model":
      return self
    model = self.model
    if model is None:
      on_stage(f"loading {self.name}")
      from tfplace.extraction import keras_step

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
    batch_size: int | None = None,
    microbatches: VariantConfig = WHOLE,
    precision: str | None = None,
    on_stage: Progress = silent,
  ) -> "TracedStep":
    """Traces a step.

    Args:
      batch_size: examples per step; None selects the model's default.
      microbatches: microbatches of the training step.
      precision: dtype policy in which the model is built; None is its own.
      on_stage: called at the start of each stage.

    Raises:
      ExtractionError: the step cannot be traced. The message names the file or
        model and the problem.
    """
    verb = "building" if self.kind == "model" else "loading"
    if self.model is None:
      on_stage(f"{verb} {self.name}")
    # A command loads TensorFlow in that stage, without its notices.
    from tfplace import extraction

    if self.kind == "model":
      return self._trace_zoo(batch_size, microbatches, precision, on_stage)
    if self.model is not None:
      return extraction.trace_keras(
        self._in_precision(precision, on_stage),
        batch_size,
        self.training,
        self.sample,
        on_stage,
        microbatches=microbatches,
      )
    if self.kind == "keras_model":
      from tfplace.extraction.keras_step import fresh_names

      with fresh_names():
        return extraction.trace_keras_file(
          *(self.name, batch_size, self.training, self.sample),
          *(on_stage, microbatches),
        )
    check_microbatches(microbatches, self.kind, self.name, False)
    if precision:
      raise ExtractionError(
        f"precision {shown(precision)} is asked for, and {self.name!r} is a"
        " graph that was traced already; leave the precision out"
      )
    is_graph = self.kind == "graph_def"
    trace: Any = (
      extraction.trace_graph_def if is_graph else extraction.trace_saved_model
    )
    return trace(
      self.name, batch_size, allow_side_effects=self.allow_side_effects
    )

  def _trace_zoo(
    self,
    batch_size: int | None,
    microbatches: VariantConfig,
    precision: str | None,
    on_stage: Progress,
  ) -> "TracedStep":
    from tfplace import models
    from tfplace.extraction import trace_keras
    from tfplace.extraction.keras_inputs import static_batch_size
    from tfplace.extraction.keras_step import fresh_names
    from tfplace.plan import precisions

    with fresh_names(), precisions.policy_scope(precision):
      zoo = self._built.get(precision)
      fixed = zoo and static_batch_size(zoo.model)
      if zoo is None or (batch_size and fixed not in (None, batch_size)):
        zoo = models.build(self.name, batch_size, **self.sizes)
        self._built[precision] = zoo
      traced = trace_keras(
        zoo.model,
        batch_size or zoo.batch_size,
        self.training,
        zoo.sample(seed=0),
        on_stage,
        microbatches=microbatches,
      )
    return dataclasses.replace(traced, name=self.name)

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
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  allow_side_effects: bool = False,
) -> ModelSource:
  """Returns the source of a model, whose arguments it checks.

  Args:
    model: a Keras model, the name of a zoo model, or the path of a model file.
    kind: kind of a name or path, one of `KINDS`; None infers it.
    training: see `ModelSource`, as the others.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    sample: sample batch.
    allow_side_effects: whether ops with side effects are allowed.

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
      "keras_model", model.name, training, sample=sample, model=model
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
  return ModelSource(kind, name, training, sizes, sample, allow_side_effects)


def check_microbatches(
  microbatches: VariantConfig, kind: str, source: str, training: bool
) -> None:
  """Checks that the step can be divided into microbatches.

  Raises:
    ExtractionError: the source cannot be split.
  """
  asked = {
    "recompute": None
    if microbatches.recompute.is_none
    else microbatches.recompute,
    "microbatches": None if microbatches.is_whole else microbatches.count,
    "max_in_flight": microbatches.max_in_flight,
  }
  given = [name for name, value in asked.items() if value is not None]
  can_split = kind in MICROBATCH_KINDS
  if given and not (can_split and training):
    what = (
      "an inference step" if can_split else "a graph that was traced already"
    )
    raise ExtractionError(
      f"{given[0]} is {asked[given[0]]}, and {source!r} ({kind}) is {what}:"
      f" leave {given[0]} out, which is for training steps of Keras models and"
      " of the zoo"
    )


def kind_of(source: str) -> str:
  """Returns the kind of a source, one of `KINDS`, by its name or path."""
  if source.endswith((".keras", ".h5")):
    return "keras_model"
  if source.endswith((".pb", ".pbtxt")):
    return "graph_def"
  return "saved_model" if os.path.isdir(source) else "model"

"""Sources of traced steps: a model is opened once and traced several times."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.core.progress import Progress, silent
from tfplace.errors import ExtractionError, TfplaceError, shown
from tfplace.plan import sources
from tfplace.plan.estimate import precision as precisions

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep


class StepSource(Protocol):
  """Model whose steps are traced at several sizes and precisions.

  Attributes:
    name: name of the model.
    notes: sentences about what the source assumed.
    can_split: whether a training step may be split into microbatches.
  """

  name: str
  notes: tuple[str, ...]
  can_split: bool

  def precision(self) -> str:
    """Returns the model's own dtype policy, or "" if it has none."""

  def trace(
    self,
    batch_size: int | None,
    microbatches: MicrobatchConfig,
    precision: str | None,
    on_stage: Progress,
  ) -> "TracedStep":
    """Traces a step; None takes the model's own batch size or precision.

    Raises:
      ExtractionError: the step cannot be traced so.
    """


def open_steps(
  model: Any,
  *,
  kind: str | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  allow_side_effects: bool = False,
  on_stage: Progress = silent,
) -> StepSource:
  """Opens a model for estimates.

  Args:
    model: a Keras model, the name of a zoo model, or the path of a model file.
    kind: kind of a name or path, one of `sources.KINDS`; None infers it.
    training: whether to trace the training step. A Keras model that is not
      compiled is traced for inference, with a note.
    sizes: additional sizes of a zoo model.
    sample: sample batch of a Keras model or file, or a `GivenBatch`.
    allow_side_effects: see `sources.trace`.
    on_stage: called at the start of each stage.

  Raises:
    ExtractionError: the model is unknown, or its file is missing or damaged.
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
    return _KerasSteps(model, training, sample)
  source = os.fspath(model)
  if kind is None:
    kind = sources.kind_of(source)
  if kind == "model":
    return _ZooSteps(source, training, sizes or {})
  if sizes:
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for {source!r}, which is no zoo model"
    )
  if kind == "keras_model":
    from tfplace.extraction import keras_step

    on_stage(f"loading {source}")
    with keras_step.fresh_names():
      loaded = keras_step.load_keras_file(source, training)
    return _KerasSteps(loaded, training, sample)
  return _GraphSteps(kind, source, allow_side_effects)


class _KerasSteps:
  """Steps of one Keras model; copies of it in other precisions are kept."""

  can_split = True

  def __init__(self, model: Any, training: bool, sample: Any) -> None:
    self.name = model.name
    self.notes: tuple[str, ...] = ()
    self._training, self._sample = training, sample
    self._models = {precisions.policy_of(model): model}
    self._own = precisions.policy_of(model)
    if training and not getattr(model, "compiled", False):
      self._training = self.can_split = False
      self.notes = (
        f"model {model.name!r} is not compiled, so this is its inference step;"
        " compile it with loss and optimizer for the training step",
      )

  def precision(self) -> str:
    return self._own

  def trace(
    self,
    batch_size: int | None,
    microbatches: MicrobatchConfig,
    precision: str | None,
    on_stage: Progress,
  ) -> "TracedStep":
    from tfplace.extraction import trace_keras

    name = precision or self._own
    if name not in self._models:
      on_stage(f"rebuilding in {name}")
      own = self._models[self._own]
      self._models[name] = precisions.rebuilt(own, name)
    return trace_keras(
      self._models[name],
      batch_size,
      self._training,
      self._sample,
      on_stage,
      microbatches=microbatches,
    )


class _ZooSteps:
  """Steps of a zoo model, which is built anew only where its inputs say so."""

  can_split = True
  notes: tuple[str, ...] = ()

  def __init__(
    self, name: str, training: bool, sizes: Mapping[str, int]
  ) -> None:
    if "batch_size" in sizes:
      raise ExtractionError(
        f"model {name!r}: batch_size={sizes['batch_size']} is given among its"
        " sizes; give the batch size by itself (--batch_size)"
      )
    self.name = name
    self._training, self._sizes = training, sizes
    self._built: dict[str | None, Any] = {}

  def precision(self) -> str:
    import keras

    return str(keras.config.dtype_policy().name)

  def trace(
    self,
    batch_size: int | None,
    microbatches: MicrobatchConfig,
    precision: str | None,
    on_stage: Progress,
  ) -> "TracedStep":
    from tfplace.extraction import trace_keras
    from tfplace.extraction.keras_step import fresh_names

    with fresh_names(), precisions.policy_scope(precision):
      zoo = self._zoo(batch_size, precision, on_stage)
      traced = trace_keras(
        zoo.model,
        batch_size or zoo.batch_size,
        self._training,
        zoo.sample(seed=0),
        on_stage,
        microbatches=microbatches,
      )
    return dataclasses.replace(traced, name=self.name)

  def _zoo(
    self, batch_size: int | None, precision: str | None, on_stage: Progress
  ) -> Any:
    from tfplace import models
    from tfplace.extraction.keras_inputs import static_batch_size

    zoo = self._built.get(precision)
    if zoo is not None:
      fixed = static_batch_size(zoo.model)
      if batch_size is None or fixed in (None, batch_size):
        return zoo
    on_stage(f"building {self.name}")
    zoo = models.build(self.name, batch_size, **self._sizes)
    self._built[precision] = zoo
    return zoo


class _GraphSteps:
  """Steps of a SavedModel or a GraphDef, whose precision is fixed."""

  can_split = False
  notes: tuple[str, ...] = ()

  def __init__(self, kind: str, source: str, allow_side_effects: bool) -> None:
    self.name = source
    self._kind, self._allows = kind, allow_side_effects

  def precision(self) -> str:
    return ""

  def trace(
    self,
    batch_size: int | None,
    microbatches: MicrobatchConfig,
    precision: str | None,
    on_stage: Progress,
  ) -> "TracedStep":
    if precision:
      raise ExtractionError(
        f"precision {shown(precision)} is asked for, and {self.name!r} is a"
        " graph that was traced already; leave the precision out"
      )
    if not microbatches.is_whole:
      sources.check_microbatches(microbatches, self._kind, self.name, False)
    return sources.trace(
      self._kind,
      self.name,
      batch_size=batch_size,
      microbatches=WHOLE,
      allow_side_effects=self._allows,
      on_stage=on_stage,
    )

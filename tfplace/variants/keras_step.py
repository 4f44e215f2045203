"""Traces the training or inference step of a Keras 3 model.

Traced without XLA like `fit`, so op names agree; the data pipeline and
callbacks are excluded.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import re
import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from tfplace.errors import ExtractionError, shown
from tfplace.extraction import (
  custom_gradients,
  functions,
  keras_inputs,
  variable_sizes,
)
from tfplace.extraction.layers import LayerRecorder, layers_of_variables
from tfplace.extraction.safety import limits
from tfplace.extraction.traced import TracedStep, collector_paused
from tfplace.graph.microbatches import (
  WHOLE,
  VariantConfig,
  microbatches_of,
  plain_sizes,
)
from tfplace.graph.progress import Progress, silent
from tfplace.variants.microbatches import microbatched_step
from tfplace.variants.microbatches.whole_batch import replaced
from tfplace.variants.recompute import recompute

_COUNTERS = "object_name_uids"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"  # around the cause in Keras' messages


@collector_paused()
@custom_gradients.released_with_graphs()
def trace_keras(
  model: keras.Model,
  batch_size: int | None = None,
  *,
  kind: str = "train",
  sample: Any = None,
  on_stage: Progress = silent,
  microbatches: VariantConfig = WHOLE,
) -> TracedStep:
  """Traces one step of a Keras model into a flat graph.

  The model keeps its weights. If the model, its optimizer or its metrics are
  not built yet, they are built.

  Args:
    model: a model, compiled with loss and optimizer to train.
    batch_size: first dimension of every input; by default the sample's, else
      32.
    kind: "train" (forward pass, gradients, optimizer update, metrics), "test"
      or "predict".
    sample: a batch `x`, `(x, y)` or `(x, y, sample_weight)` of arrays or
      tensors, the data of the model's own step, or a `GivenBatch`; required if
      the model has seen no batch and does not define its inputs, or the loss
      its targets.
    on_stage: called at the start of each stage.
    microbatches: microbatches of the training step; one by default.

  Returns:
    The traced step. `fetches[0]` is the loss of the batch if the step has one,
    else the first output. The node of a variable is named by its Keras path.

  Raises:
    ExtractionError: the model is not compiled, shapes are unknown, tracing
      fails, or the step cannot be split into microbatches.
  """
  training = kind == "train"
  if training:
    _check_compiled(model)
  batch = keras_inputs.batch_spec(model, batch_size, kind, sample)
  if training:
    on_stage("building the optimizer")
    _build(model, batch.structure)
  _check_microbatches(microbatches, training, batch.batch_size)
  concrete, losses, recorder = _trace_step(
    model, batch, kind=kind, on_stage=on_stage, microbatches=microbatches
  )
  on_stage("inlining")
  samples = zip(concrete.inputs, batch.values, strict=False)  # in flat order
  traced = functions.trace_function(
    concrete,
    name=model.name,
    training=training,
    fetches=_fetches(concrete, losses),
    variable_names=_variable_names(model),
    values={t.op.name: value for t, value in samples if value is not None},
  )
  _check_names(model, microbatches, [n.name for n in traced.graph_def.node])
  layers = recorder.of_nodes(traced.graph_def, layers_of_variables(model))
  return dataclasses.replace(
    traced,
    layers=layers,
    microbatches=microbatches.count,
    microbatch_sizes=microbatches.sizes
    or plain_sizes(batch.batch_size, microbatches.count),
    variables=variable_sizes.with_roles(traced.variables, model),
    weights=variable_sizes.weight_sizes(model),
    batch_size=batch.batch_size,
  )


def trace_keras_file(
  path: str | os.PathLike[str],
  batch_size: int | None = None,
  *,
  training: bool = True,
  **options: Any,
) -> TracedStep:
  """Traces one step of a `.keras` or `.h5` model file.

  Further options and errors are those of `trace_keras` and `load_keras_file`.
  """
  model = load_keras_file(path, training)
  if training and not model.compiled:
    raise ExtractionError(
      f"Keras model file {os.fspath(path)!r} has no training step: it was saved"
      " before compile(), or the model has a compile() of its own, which Keras"
      " does not restore; take its inference step (--notraining), or the model"
      " itself in Python"
    )
  kind = "train" if training else "predict"
  return trace_keras(model, batch_size, kind=kind, **options)


def load_keras_file(
  path: str | os.PathLike[str], training: bool = True
) -> keras.Model:
  """Loads a `.keras` or `.h5` model file, compiled if it is for training.

  Python code in the file is not run (Keras' safe mode), and no other file is
  read.

  Raises:
    ExtractionError: the file is missing or damaged, unpacks to too many bytes,
      or needs classes unknown to Keras.
  """
  name = os.fspath(path)
  if not os.path.isfile(name):
    raise ExtractionError(f"there is no Keras model file {name!r}")
  limits.check_keras_file(name)
  try:
    with warnings.catch_warnings():
      # Keras warns about files saved before the first `fit`. Their missing
      # optimizer slots do not matter to a trace.
      warnings.filterwarnings("ignore", "Skipping variable loading for optim")
      # It warns for each model inside the model; errors say what is missing.
      warnings.filterwarnings("ignore", r"`compile\(\)` was not called")
      model = keras.saving.load_model(name, compile=training, safe_mode=True)
  except Exception as error:
    raise ExtractionError(
      f"Keras model file {name!r} cannot be loaded: {_why_unloaded(error)}"
    ) from error
  if training:
    _renew_optimizer(model)
  return model


_UNKNOWN = re.compile(
  r"(?:Could not locate|Unknown) (class|function|layer|loss|metric|object)"
  r"(?: function)?:? '([^']+)'"
)


def _why_unloaded(error: Exception) -> str:
  """Returns the reason of Keras, or the class that it does not know."""
  unknown = _UNKNOWN.search(str(error))
  if unknown is None:
    return f"{type(error).__name__}: {_cause(error)}"
  what, name = unknown.groups()
  config = rf"'module': '([\w.]+)', 'class_name': '{re.escape(name)}'"
  module = re.search(config, str(error))
  option = "--import" if module is None else f"--import={module[1]}"
  return (
    f"Keras does not know its {what} {shown(name)}; name the Python module"
    f" that defines it with {option}, or import it in Python before the file is"
    " loaded"
  )


def _renew_optimizer(model: keras.Model) -> None:
  """Replaces a loaded optimizer that was built for other variables."""
  optimizer = getattr(model, "optimizer", None)
  if optimizer is None or not optimizer.built:
    return
  built_for = {id(v) for v in getattr(optimizer, "_trainable_variables", [])}
  if built_for != {id(v) for v in model.trainable_variables}:
    model.optimizer = type(optimizer).from_config(optimizer.get_config())


def _variable_names(model: keras.Model) -> dict[int, str]:
  variables = list(model.variables)
  if getattr(model, "optimizer", None) is not None:
    variables += model.optimizer.variables
  for metric in getattr(model, "metrics", []):
    variables += metric.variables
  return {
    id(v.value): v.path for v in variables if isinstance(v, keras.Variable)
  }


def _check_compiled(model: keras.Model) -> None:
  lacks_optimizer = not keras_inputs.has_own_step(model) and (
    getattr(model, "optimizer", None) is None
  )
  if not getattr(model, "compiled", False) or lacks_optimizer:
    raise ExtractionError(
      f"model {model.name!r} has no loss or optimizer; compile it before its"
      " training step is extracted"
    )


def _trace_step(
  model: keras.Model,
  batch: keras_inputs.BatchSpec,
  *,
  kind: str,
  on_stage: Progress,
  microbatches: VariantConfig,
) -> tuple[Any, list[tf.Tensor], LayerRecorder]:
  losses: list[tf.Tensor] = []
  recorders: list[LayerRecorder] = []

  def data_step(data: Any) -> Any:
    graph = tf.compat.v1.get_default_graph()
    on_stage("tracing")
    recorders.append(LayerRecorder(graph, model))
    with graph.device(recorders[-1]), _recorded_loss(model, losses):
      if microbatches.is_whole:
        with recompute.applied(model, microbatches):
          return getattr(model, f"{kind}_step")(data)
      logs, loss = microbatched_step.microbatched_train_step(
        model, data, microbatches
      )
      losses.append(loss)
      return logs

  step = tf.function(data_step, jit_compile=False, autograph=False)
  what = f"traced at batch size {batch.batch_size}"
  if not microbatches.is_whole:
    what += f" in {microbatches.count} microbatches"
  with _errors_of(model, what):
    concrete = step.get_concrete_function(batch.structure)
  return concrete, losses, recorders[-1]


def _check_names(model: Any, config: VariantConfig, names: Any) -> None:
  """Checks that the model has no names of ops that tfplace adds."""
  named = microbatches_of(names)
  if (config.is_whole and not named.is_whole) or (
    config.recompute.is_none and not named.recompute.is_none
  ):
    raise ExtractionError(
      f"model {model.name!r} has a layer or scope named as tfplace names"
      " microbatches (microbatch_0) or recomputed activations (recompute_0):"
      " rename it"
    )


def _check_microbatches(
  microbatches: VariantConfig, training: bool, batch_size: int
) -> None:
  if not training and microbatches.count > 1:
    raise ExtractionError(
      f"microbatches is {microbatches.count}: only a training step is split"
    )
  if not (training or microbatches.recompute.is_none):
    raise ExtractionError(
      f"recompute is {microbatches.recompute}: only a training step recomputes"
    )
  microbatches.check_batch(batch_size)


def _cause(error: Exception) -> str:
  """Summarizes an error in one line; Keras marks place and cause in bold."""
  lines = (str(error).strip() or type(error).__name__).splitlines()
  bold = [line for line in lines if line.startswith(_BOLD)]
  said = [lines[0], *bold[:1]]
  if lines[0].endswith(":") and not bold:  # What follows is the cause.
    said += [line for line in lines[1:] if line.strip()][:1]
  text = " ".join(said).replace(_BOLD, "").replace(_PLAIN, "")
  return textwrap.shorten(text, 320, placeholder=" ...")


def _build(model: keras.Model, structure: Any) -> None:
  """Creates all variables as `fit` does, or as the model's own step does."""
  with _errors_of(model, "built"):
    if keras_inputs.has_own_step(model):
      step = tf.function(model.train_step, autograph=False)
      step.get_concrete_function(structure)
      return
    batch = tf.nest.map_structure(
      lambda spec: spec and keras.KerasTensor(spec.shape, spec.dtype.name),
      structure,
    )
    model._symbolic_build(data_batch=batch)


@contextlib.contextmanager
def _errors_of(model: keras.Model, what: str) -> Iterator[None]:
  """Says which model Keras cannot build or trace, and why."""
  try:
    yield
  except ExtractionError:
    raise
  except Exception as error:
    raise ExtractionError(
      f"model {model.name!r} cannot be {what}: {_cause(error)}"
    ) from error


@contextlib.contextmanager
def _recorded_loss(
  model: keras.Model, losses: list[tf.Tensor]
) -> Iterator[None]:
  compute = model.compute_loss

  @functools.wraps(compute)  # Keras inspects the signature
  def recording(*args: Any, **kwargs: Any) -> Any:
    loss = compute(*args, **kwargs)
    losses.append(loss)
    return loss

  recording.record_loss = losses.append  # type: ignore[attr-defined]
  with replaced(model, "compute_loss", recording):
    yield


def _fetches(concrete: Any, losses: list[tf.Tensor]) -> list[tf.Tensor]:
  known = [
    t for t in losses if isinstance(t, tf.Tensor) and t.graph is concrete.graph
  ]
  logs = concrete.structured_outputs
  if not known and isinstance(logs, dict) and "loss" in logs:
    known = [logs["loss"]]
  outputs = [t for t in concrete.outputs if isinstance(t, tf.Tensor)]
  return known[-1:] + outputs


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
  """Restarts Keras' name counters in this context and restores them on exit.

  Keras numbers its automatic names ("conv2d_94") across the whole process.
  Restarting the counters lets a placement or a cached graph of one build of a
  model fit the next build.
  """
  kept = global_state.get_global_attribute(_COUNTERS)
  counters: dict[str, int] = collections.defaultdict(int)
  global_state.set_global_attribute(_COUNTERS, counters)
  try:
    yield
  finally:
    global_state.set_global_attribute(_COUNTERS, kept)

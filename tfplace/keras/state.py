"""Variables, step functions and XLA setting of a Keras 3 model.

This module collects the accesses to Keras' private attributes that placement
requires. Moving a variable preserves its value.
"""

import contextlib
import difflib
import functools
import gc
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers import trainer
from tensorflow.python.eager.polymorphic_function.concrete_function import (
  ConcreteFunction,
)

from tfplace.errors import ApplyError
from tfplace.extraction import keras_inputs as inputs
from tfplace.graph.cluster import Cluster

_logger = logging.getLogger("tfplace")

KINDS = ("train", "test", "predict")  # of steps, and of their functions
# Functions of Keras, which makes them again.
_OF_KERAS = frozenset(
  ("one_step_on_data", "one_step_on_data_distributed", "multi_step_on_iterator")
)
_LISTED = 12  # Number of layers in a message.


def optimizers(model: keras.Model) -> list[Any]:
  """Returns the optimizers of `model`, including those inside wrappers.

  Attributes that are lists, tuples or mappings are searched, too.
  """
  result: list[Any] = []
  waiting: list[Any] = [model]
  while waiting:
    for value in vars(waiting.pop(0)).values():
      if isinstance(value, Mapping):
        values = [*value.values()]
      else:
        values = [*value] if isinstance(value, list | tuple) else [value]
      for optimizer in values:
        is_known = any(optimizer is other for other in result)
        if isinstance(optimizer, keras.optimizers.Optimizer) and not is_known:
          result.append(optimizer)
          waiting.append(optimizer)
  return result


def variables(model: keras.Model) -> list[keras.Variable]:
  """Returns weights, seeds, metrics and optimizer slots without duplicates.

  The result contains only plain resource variables that already exist.
  """
  every = [*model.variables, *model.metrics_variables]
  for optimizer in optimizers(model):
    every += optimizer.variables
  unique = {id(v): v for v in every}
  return [v for v in unique.values() if isinstance(v._value, tf.Variable)]


def handle_key(variable: keras.Variable) -> int:
  """Returns the key of the resource that traced functions capture."""
  return id(variable._value.handle)


def move(variable: keras.Variable, device: str) -> tf.Tensor | None:
  """Replaces the resource of `variable` by a copy on `device`.

  Functions that were traced before hold the old resource and must be traced
  again. The copy keeps the unique id, because optimizers find the slots of a
  variable by it, including optimizers that the model does not hold.

  Returns:
    Handle of the old resource; None if the variable is there already.
  """
  old = variable._value
  if old.device == device:
    return None
  with tf.device(device):
    new = tf.Variable(
      old.read_value(),
      trainable=old.trainable,
      name=old.name.split(":")[0],
      dtype=old.dtype,
      synchronization=old.synchronization,
      aggregation=old.aggregation,
      shape=old.shape,
    )
  new._unique_id = old._unique_id
  variable._value = new
  return old.handle


def values(model: keras.Model) -> list[tuple[keras.Variable, np.ndarray]]:
  """Copies the values of all `variables` to host memory."""
  return [(v, v._value.numpy()) for v in variables(model)]


def assign(values: Iterable[tuple[keras.Variable, np.ndarray]]) -> None:
  """Restores what `values` copied."""
  for variable, value in values:
    variable._value.assign(value)


def slots(model: keras.Model) -> Iterator[tuple[keras.Variable, Any]]:
  """Yields pairs (slot, owning variable) of all optimizers.

  An optimizer keeps its slots in lists parallel to its trainable variables.
  """
  for optimizer in optimizers(model):
    owners = getattr(optimizer, "_trainable_variables", [])
    for name, value in vars(optimizer).items():
      parallel = isinstance(value, list) and len(value) == len(owners)
      if not parallel or name in ("_trainable_variables", "_variables"):
        continue
      for slot, owner in zip(value, owners, strict=True):
        if isinstance(slot, keras.Variable):
          yield slot, owner


def layer_names(model: keras.Model) -> set[str]:
  """Returns the names of the model and of all layers, nested ones included."""
  return {layer.name for layer in model._flatten_layers()}


def similar_names(name: str, layers: Iterable[str]) -> str:
  """Lists the layers most similar to an unknown name, for a message."""
  known = sorted(layers)
  near = difflib.get_close_matches(name, known, n=3)
  meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
  others = f" and {len(known) - _LISTED} others" if known[_LISTED:] else ""
  return f"{meant}its layers are {', '.join(known[:_LISTED])}{others}"


def layer_devices(
  model: keras.Model, devices: Mapping[str, str]
) -> dict[int, str]:
  """Converts devices by layer name to devices by `id` of the variable.

  A layer inside a named layer inherits its device unless it is named itself.
  """
  result: dict[int, str] = {}

  def visit(layer: Any, inherited: str | None) -> None:
    device = devices.get(layer.name, inherited)
    if device is not None:
      for variable in layer.variables:
        result[id(variable)] = device
    for child in layer._layers:
      visit(child, device)

  visit(model, None)
  return result


def check_not_eager(model: keras.Model, is_planned: bool = False) -> None:
  """Rejects a model whose steps run eagerly, which cannot be placed.

  Args:
    model: model to place, or a placed model.
    is_planned: whether the model already has a plan.

  Raises:
    ApplyError: steps run eagerly. The message names the setting and the
      remedy.
  """
  if model.run_eagerly:
    why, instead = "run_eagerly=True is set", "set model.run_eagerly = False"
  elif tf.config.functions_run_eagerly():
    why = "tf.config.run_functions_eagerly(True) was called"
    instead = "call it with False"
  else:
    return
  how = "cannot be placed, since its steps run op by op and not as a graph"
  if is_planned:
    how = "was placed as a graph, and its steps run op by op since then"
  raise ApplyError(f"model {model.name!r} {how}: {why}; {instead}")


def reset_functions(model: keras.Model, besides: str | None = None) -> None:
  """Discards the traced functions of all steps except the kind `besides`."""
  for kind in KINDS:
    if kind != besides:
      setattr(model, f"{kind}_function", None)


def telling_batch_size(
  fit: Callable[..., Any], tell: Callable[[int | None], None]
) -> Callable[..., Any]:
  """Returns a `fit` that tells the batch size it is given, and None after."""

  @functools.wraps(fit)
  def telling_fit(*args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(fit).bind_partial(*args, **kwargs).arguments
    size, x = given.get("batch_size"), keras.tree.flatten(given.get("x"))
    if size and x and getattr(x[0], "shape", ()):
      size = min(size, x[0].shape[0])
    tell(size)
    try:
      return fit(*args, **kwargs)
    finally:
      tell(None)

  return telling_fit


def renew_others(model: keras.Model, moved: Iterable[keras.Variable]) -> None:
  """Renews the functions of all other models that have a moved variable.

  They may be parts of the model, contain it, or share layers with it.
  """
  ids = {id(variable) for variable in moved}
  alive = gc.get_objects() if ids else []
  for other in [o for o in alive if issubclass(type(o), keras.Model)]:
    has = set[int]()
    with contextlib.suppress(AttributeError):  # Its constructor has not ended.
      has = set(map(id, variables(other)))
    if other is not model and has & ids:
      with functions_renewed(other):
        pass


def warn_of_old_functions(
  model: keras.Model, handles: Iterable[tf.Tensor]
) -> None:
  """Warns of a user's traced functions that hold replaced resources."""
  ids = {id(handle) for handle in handles}

  def names() -> set[str]:
    alive = gc.get_objects() if ids else []
    functions = (o for o in alive if issubclass(type(o), ConcreteFunction))
    return {
      function.graph.name
      for function in functions
      if function.graph.name not in _OF_KERAS
      and not ids.isdisjoint(map(id, function.captured_inputs))
    }

  if not names():
    return
  gc.collect()  # Discarded functions are cycles.
  if old := sorted(names()):
    _logger.warning(
      "model %r: its variables moved, and the tf.function %s goes on with their"
      " old copies: place the model before you call it, or trace it anew",
      model.name,
      ", ".join(map(repr, old)),
    )


@contextlib.contextmanager
def functions_renewed(model: keras.Model) -> Iterator[None]:
  """Discards the traced functions, and makes those again that were there.

  A running `fit` looks its function up for each step, so what changes inside
  the context holds from the next step.
  """
  had = [k for k in KINDS if getattr(model, f"{k}_function") is not None]
  reset_functions(model)
  try:
    yield
  finally:
    for kind in had:
      getattr(model, f"make_{kind}_function")(force=True)


def build(
  model: keras.Model, kind: str, step: Callable[[Any], Any], data: Any
) -> None:
  """Builds the layers of a model, and its metrics and optimizer for training.

  A custom step is traced, because only the step defines the inputs of its
  parts.

  Args:
    model: model to build.
    kind: kind of the step, one of `KINDS`.
    step: step function of this kind.
    data: one batch in the form that `step` takes.
  """
  is_custom = has_custom_step(model, kind)
  parts = [*model._flatten_layers()]
  if kind == "train":
    parts += optimizers(model)
  if kind != "predict" and not is_custom and model.compiled:
    model._symbolic_build(data_batch=data)
  elif not all(part.built for part in parts):
    traced(step, data)


def has_custom_step(model: keras.Model, kind: str) -> bool:
  """Returns whether the step of this kind or the training step is custom.

  The training step determines which variables the optimizer updates.
  """
  return any(inputs.has_own_step(model, k) for k in {kind, "train"})


def traced(step: Callable[[Any], Any], data: Any) -> Any:
  """Traces a step for batches like `data` and returns the concrete function."""
  specs = keras.tree.map_structure(_spec, data)
  return tf.function(step, autograph=False).get_concrete_function(specs)


def _spec(value: Any) -> Any:
  if value is None or isinstance(value, tf.TypeSpec):
    return value
  return tf.type_spec_from_value(value)


def wants_jit(model: keras.Model) -> bool:
  """Returns whether the unplaced model's steps are compiled by XLA here."""
  switch = getattr(model.compile, "__self__", None)
  if isinstance(switch, JitSwitch):
    return switch.wanted
  return bool(model.jit_compile)


def compiles_own_steps(model: keras.Model, cluster: Cluster) -> bool:
  """Returns whether Keras compiles the model's own steps on such devices.

  On a host with GPUs, that is the default.
  """
  has_gpus = not cluster.is_cpu.all()
  if has_gpus and not tf.config.list_physical_devices("GPU"):
    return bool(trainer.model_supports_jit(model))
  return wants_jit(model)


class JitSwitch:
  """Switch that disables a model's `jit_compile` while a placement needs it.

  Each call of `compile` sets `jit_compile` again, after a check of
  `supports_jit`.

  Attributes:
    wanted: whether the user or Keras requests XLA.
  """

  def __init__(self, model: keras.Model) -> None:
    """Disables XLA until `allow` is called."""
    self._model = model
    self._supported: bool = model.supports_jit
    self.wanted: bool = model.jit_compile
    self._compile = model.compile
    self._awaited = True  # The decision is open; `compile` calls are recorded.
    self._off = True
    model.compile = self._compile_and_note
    self._apply()

  def forbid(self) -> None:
    """Disables XLA for a placed model; Keras reports it on request."""
    self._awaited, self._off = False, True
    self._apply()

  def allow(self) -> None:
    """Restores the user's XLA setting for a model that is not placed."""
    self._awaited, self._off = False, False
    self._apply()
    if self._model.jit_compile:
      with functions_renewed(self._model):  # A fit may be running.
        pass

  def detach(self) -> None:
    """Restores the model's own `compile` and XLA setting."""
    del self._model.compile
    self._off = False
    self._apply()

  def _apply(self) -> None:
    self._model.supports_jit = self._supported and not self._off
    self._model.jit_compile = self.wanted and not self._off

  def _compile_and_note(self, *args: Any, **kwargs: Any) -> None:
    if self._awaited:
      self._model.supports_jit = self._supported
    self._compile(*args, **kwargs)
    if self._awaited or not self._off:
      self.wanted = self._model.jit_compile
      self._apply()

"""The state of a Keras 3 model: its variables, its functions, its XLA choice.

All of Keras's private attributes that placing a model touches are used in this
module. The numbers never change: a variable moves with its value.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfplace.errors import ApplyError
from tfplace.extraction import keras_inputs as inputs

KINDS = ("train", "test", "predict")  # of steps, and of their functions


def optimizers(model: keras.Model) -> list[Any]:
  """The optimizers that `model` holds, inner ones of wrappers included."""
  found: list[Any] = []
  waiting = _optimizers_of(model)
  while waiting:
    optimizer = waiting.pop(0)
    if not any(optimizer is other for other in found):
      found.append(optimizer)
      waiting += _optimizers_of(optimizer)
  return found


def _optimizers_of(owner: Any) -> list[Any]:
  """Those among its attributes, and in lists and mappings among them."""
  values: list[Any] = []
  for value in vars(owner).values():
    if isinstance(value, Mapping):
      values.extend(value.values())
    elif isinstance(value, (list, tuple)):
      values.extend(value)  # "+" asks TensorFlow's wrapper of tuples, and fails
    else:
      values.append(value)
  return [v for v in values if isinstance(v, keras.optimizers.Optimizer)]


def variables(model: keras.Model) -> list[keras.Variable]:
  """Weights, seeds, metrics and optimizer slots of `model`, each once.

  Only variables that exist by now and are plain resource variables.
  """
  every = [*model.variables, *model.metrics_variables]
  for optimizer in optimizers(model):
    every += optimizer.variables
  unique = {id(v): v for v in every}
  return [v for v in unique.values() if isinstance(v._value, tf.Variable)]


def handle_key(variable: keras.Variable) -> int:
  """Identifies the resource of `variable` as a traced function captures it."""
  return id(variable._value.handle)


def device_of(variable: keras.Variable) -> str:
  """The full name of the device that holds `variable`."""
  return variable._value.device


def move(variable: keras.Variable, device: str) -> None:
  """Replaces the resource of `variable` by a copy on `device`.

  Functions traced before still hold the old resource: they must be traced
  again. The copy keeps the unique id, by which optimizers (also those that
  the model does not know) find a variable's slots.
  """
  old = variable._value
  if old.device == device:
    return
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


def slots(model: keras.Model) -> Iterator[tuple[keras.Variable, Any]]:
  """Pairs (slot, variable whose slot it is) over all optimizers.

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
  """Names of all layers, nested ones included, and of the model itself."""
  return {layer.name for layer in model._flatten_layers()}


def layer_devices(
  model: keras.Model, devices: Mapping[str, str]
) -> dict[int, str]:
  """`id` of a variable -> device, from layer name -> device.

  A layer inside a named layer follows it unless it is named itself.
  """
  found: dict[int, str] = {}

  def visit(layer: Any, inherited: str | None) -> None:
    device = devices.get(layer.name, inherited)
    if device is not None:
      for variable in layer.variables:
        found[id(variable)] = device
    for child in layer._layers:
      visit(child, device)

  visit(model, None)
  return found


def check_not_eager(model: keras.Model, is_planned: bool = False) -> None:
  """Refuses a model whose steps run op by op: nothing of them can be placed.

  Args:
    model: to be placed, or placed already.
    is_planned: whether its plan was made before its steps ran op by op.

  Raises:
    ApplyError: says what makes them so, and what to do.
  """
  if model.run_eagerly:
    why, instead = "run_eagerly=True is set", "set model.run_eagerly = False"
  elif tf.config.functions_run_eagerly():
    why = "tf.config.run_functions_eagerly(True) was called"
    instead = "call it with False"
  else:
    return
  if is_planned:
    raise ApplyError(
      f"model {model.name!r} was placed as a graph, and its steps run op by op"
      f" since then: {why}; {instead}"
    )
  raise ApplyError(
    f"model {model.name!r} cannot be placed, since its steps run op by op and"
    f" not as a graph: {why}; {instead}"
  )


def reset_functions(model: keras.Model, besides: str | None = None) -> None:
  """Makes the next fit, evaluate and predict trace again, `besides` one."""
  for kind in KINDS:
    if kind != besides:
      setattr(model, f"{kind}_function", None)


def build(
  model: keras.Model, kind: str, step: Callable[[Any], Any], data: Any
) -> None:
  """Builds layers, and for training metrics and optimizer, from `data`.

  A step of the model's own is traced: only it knows what its parts are called
  with. `data` is one batch as `step`, of that kind, gets it.
  """
  # What trains knows which variables the optimizer is for.
  own = any(inputs.has_own_step(model, k) for k in {kind, "train"})
  if kind != "predict" and not own and model.compiled:
    model._symbolic_build(data_batch=data)
  elif not _is_built(model, kind):
    traced(step, data)


def _is_built(model: keras.Model, kind: str) -> bool:
  parts = list(model._flatten_layers())
  if kind == "train":
    parts += optimizers(model)
  return all(part.built for part in parts)


def traced(step: Callable[[Any], Any], data: Any) -> Any:
  """The concrete function of a step for batches like `data`; only to look."""
  specs = keras.tree.map_structure(_spec, data)
  return tf.function(step, autograph=False).get_concrete_function(specs)


def _spec(value: Any) -> Any:
  if value is None or isinstance(value, tf.TypeSpec):
    return value
  return tf.type_spec_from_value(value)


class JitSwitch:
  """Holds back a model's `jit_compile` until it is known to be harmless.

  Keras sets `jit_compile` anew at each `compile`, asking `supports_jit` first.
  """

  def __init__(self, model: keras.Model) -> None:
    """Off, until `allow`."""
    self._model = model
    self._supported: bool = model.supports_jit
    self._wanted: bool = model.jit_compile
    self._compile = model.compile
    self._awaited = True  # nothing is decided: what is asked for is noted
    self._off = True
    model.compile = self._compile_and_note
    self._apply()

  def is_dropped(self) -> bool:
    """Whether a compiled model asks for XLA that a placement denies it."""
    return self._wanted and bool(self._model.compiled)

  def forbid(self) -> None:
    """The model is placed: XLA is off, and Keras says so if it is asked."""
    self._awaited, self._off = False, True
    self._apply()

  def allow(self) -> None:
    """The model stays as it is: it gets what was chosen."""
    self._awaited, self._off = False, False
    self._apply()
    if not self._model.jit_compile:
      return
    for kind in KINDS:  # a fit may be running
      if getattr(self._model, f"{kind}_function") is not None:
        getattr(self._model, f"make_{kind}_function")(force=True)

  def detach(self) -> None:
    """Gives the model its own `compile` and choice back."""
    del self._model.compile
    self._off = False
    self._apply()

  def _apply(self) -> None:
    self._model.supports_jit = self._supported and not self._off
    self._model.jit_compile = self._wanted and not self._off

  def _compile_and_note(self, *args: Any, **kwargs: Any) -> None:
    if self._awaited:
      self._model.supports_jit = self._supported
    self._compile(*args, **kwargs)
    if self._awaited or not self._off:
      self._wanted = self._model.jit_compile
      self._apply()

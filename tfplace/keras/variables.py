"""Variables of models, on the host until planning and then on their devices.

A model may be larger than any one device. Its variables are created on the
host's CPU and move one by one once a plan names their devices. All others move
to TensorFlow's default device, where they would be without tfplace. A plain
`tf.Variable`, which Keras does not track, stays on the host unless it is
created in a `tf.device` scope.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from tfplace.keras import state
from tfplace.plan import local_devices

_WAITS = "_tfplace_waits_on_host"  # Attribute of variables and of models.
# Bytes to move from which it is worth a moment to collect the graphs of the
# planner first: they are cycles, and hold the memory of moved variables.
_LARGE_BYTES = 64 << 20


@contextlib.contextmanager
def built_on_host() -> Iterator[None]:
  """Creates the variables of models inside the context in host memory.

  A variable inside a `tf.device` scope is created there, and an optimizer slot
  beside its variable.
  """
  host = local_devices.host_device()

  def create(next_creator: Any, **options: Any) -> Any:
    if context.context().device_name:
      return next_creator(**options)
    with tf.device(host):
      variable = next_creator(**options)
    setattr(variable, _WAITS, True)
    return variable

  with tf.variable_creator_scope(create):
    yield


def keep_building_on_host(model: keras.Model) -> None:
  """Extends `built_on_host` to what a model creates before it is planned."""
  vars(model)[_WAITS] = True  # Past Keras' attribute tracking.


def built_with(
  model: keras.Model, is_waiting: bool
) -> contextlib.AbstractContextManager[None]:
  """Builds on the host if the model began there and waits for its plan."""
  is_on_host = is_waiting and _WAITS in vars(model)
  return built_on_host() if is_on_host else contextlib.nullcontext()


class PlacedVariables:
  """Variables of one model, which move to the devices of its plans."""

  def __init__(self, model: keras.Model) -> None:
    self._model = model
    self._settled: dict[int, Any] = {}  # Variables in their final place.
    self._moved: dict[int, Any] = {}  # Variables that a plan moved.

  @property
  def are_settled(self) -> bool:
    """Returns whether all existing variables are in their final place."""
    variables = state.variables(self._model)
    return all(id(variable) in self._settled for variable in variables)

  def settle(self) -> None:
    """Declares the places of all variables final."""
    for variable in state.variables(self._model):
      self._settled.setdefault(id(variable), variable)

  def unsettle(self) -> None:
    """Lets all variables move again, for another plan."""
    self._settled.clear()

  def move(self, devices: Mapping[int, str]) -> None:
    """Moves variables, by `id`, that are not settled."""
    # An earlier traced function may hold the settled variables.
    moving = [
      (variable, devices[id(variable)])
      for variable in state.variables(self._model)
      if id(variable) in devices and id(variable) not in self._settled
    ]
    size = sum(
      (v._value.shape.num_elements() or 0) * v._value.dtype.size
      for v, device in moving
      if v._value.device != device
    )
    if size >= _LARGE_BYTES:
      gc.collect()
    for variable, _ in moving:
      self._moved[id(variable)] = self._settled[id(variable)] = variable
    self._move(moving)

  def leave_host(self) -> None:
    """Moves what waits in host memory to the default device.

    These are variables that `built_on_host` created and that never moved, and
    their optimizer slots.
    """
    variables = {id(v): v for v in state.variables(self._model)}
    waiting = {i: v for i, v in variables.items() if hasattr(v._value, _WAITS)}
    for slot, owner in state.slots(self._model):
      if id(owner) in waiting:
        waiting.setdefault(id(slot), slot)
    device = local_devices.default_device()
    self._move(
      [(v, device) for key, v in waiting.items() if key not in self._settled]
    )

  def go_home(self) -> None:
    """Moves what plans have moved to the default device."""
    slots = state.slots(self._model)  # Created beside their owners.
    also = {id(slot) for slot, owner in slots if id(owner) in self._moved}
    device = local_devices.default_device()
    self._move(
      [
        (variable, device)
        for variable in state.variables(self._model)
        if id(variable) in self._moved or id(variable) in also
      ]
    )
    self._moved.clear()

  def _move(self, moving: Sequence[tuple[keras.Variable, str]]) -> None:
    """Moves variables to devices; other models that have them see it."""
    old = [(v, state.move(v, device)) for v, device in moving]
    state.renew_others(self._model, [v for v, h in old if h is not None])
    state.warn_of_old_functions(
      self._model, [handle for _, handle in old if handle is not None]
    )
    for variable, _ in moving:
      if hasattr(variable._value, _WAITS):  # It was there already.
        delattr(variable._value, _WAITS)

"""Models that are built in host memory until their devices are known.

A model may be larger than any one device. Its variables are created on the
host's CPU and move one by one once a plan names their devices. All others move
to TensorFlow's default device, where they would be without tfplace. A plain
`tf.Variable`, which Keras does not track, stays on the host unless it is
created in a `tf.device` scope.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from tfplace.keras import state
from tfplace.plan import local_devices

_WAITS = "_tfplace_waits_on_host"  # Attribute of variables and of models.


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


@contextlib.contextmanager
def built_with(model: keras.Model, is_waiting: bool) -> Iterator[None]:
  """Builds on the host if the model began there and waits for its plan."""
  if is_waiting and _WAITS in vars(model):
    with built_on_host():
      yield
  else:
    yield


def waiting(model: keras.Model) -> list[keras.Variable]:
  """Returns the variables that are in host memory only until planning.

  They are those that `built_on_host` created and that never moved, and their
  optimizer slots.
  """
  found = {
    id(v): v for v in state.variables(model) if hasattr(v._value, _WAITS)
  }
  own = [slot for slot, owner in state.slots(model) if id(owner) in found]
  return list({**found, **{id(slot): slot for slot in own}}.values())


def stays_on_host(variable: keras.Variable) -> None:
  """Marks a variable that a plan places in host memory."""
  if hasattr(variable._value, _WAITS):
    delattr(variable._value, _WAITS)

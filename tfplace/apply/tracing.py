"""Two things that TensorFlow's public interface to tracing lacks.

Tracing a function, gradients included, while another one is being traced; and
placing the rest of a trace from a call inside it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe


@contextlib.contextmanager
def gradients_recorded() -> Iterator[None]:
  """Inside, gradient tapes of this thread record again.

  Planning may begin inside the trace of a step. `tf.init_scope` leaves that
  trace's graph, but also stops gradient tapes, and a training step traced
  there would have no gradients.
  """
  if not pywrap_tfe.TFE_Py_TapeSetIsStopped():
    yield
    return
  pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
  try:
    yield
  finally:
    pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def place_rest_of_trace(device_function: Callable[[tf.Operation], str]) -> None:
  """Places all that the functions now being traced will still create.

  The innermost function and those around it get the device function below
  whatever `tf.device` is open, so that it ends with their trace.
  """
  graph: Any = tf.compat.v1.get_default_graph()
  while hasattr(graph, "outer_graph"):  # a function's graph
    stack = graph._device_function_stack
    if not any(
      spec.function.__class__ is device_function.__class__
      for spec in stack.peek_objs()
    ):
      graph._add_device_to_stack(device_function)
      stack._stack.insert(0, stack._stack.pop())
    graph = graph.outer_graph


@contextlib.contextmanager
def on_each_call(model: Any, action: Callable[[], None]) -> Iterator[None]:
  """Inside, `action` runs before each call of `model` that is traced."""
  call = model.call

  def acting(*args: Any, **kwargs: Any) -> Any:
    if not tf.executing_eagerly():
      action()
    return call(*args, **kwargs)

  before = vars(model).get("call")
  vars(model)["call"] = acting  # past Keras' attribute tracking
  try:
    yield
  finally:
    if before is None:
      del vars(model)["call"]
    else:
      vars(model)["call"] = before

"""Runs a few training steps without tracing."""

import contextlib

import tensorflow as tf


@contextlib.contextmanager
def run_eagerly():
  """Runs functions op by op: a few steps take less than their tracing."""
  tf.config.run_functions_eagerly(True)
  try:
    yield
  finally:
    tf.config.run_functions_eagerly(False)

"""Tracing a function while another one is being traced.

Planning may begin inside the trace of a step. `tf.init_scope` leaves that
trace's graph, but also stops gradient tapes, and a training step traced there
would have no gradients.
"""

import contextlib
from collections.abc import Iterator

from tensorflow.python import pywrap_tfe


@contextlib.contextmanager
def gradients_recorded() -> Iterator[None]:
  """Inside, gradient tapes of this thread record again."""
  if not pywrap_tfe.TFE_Py_TapeSetIsStopped():
    yield
    return
  pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
  try:
    yield
  finally:
    pywrap_tfe.TFE_Py_TapeSetStopOnThread()

"""XLA on a placed model: off, since it would put the step on one device.

A model that is left where it is keeps what its user chose, also where that
was decided in the middle of the first fit.
"""

from typing import Any

import keras

_FUNCTIONS = ("train", "test", "predict")


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
    for kind in _FUNCTIONS:  # a fit may be running
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

"""Checkpoints from which a run goes on as if it had never stopped."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from tfplace.errors import TrainingError
from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402


class JsonState(tf.train.experimental.PythonState):
  """What a run must remember besides variables, as JSON in the checkpoint.

  Attributes:
    value: plain JSON data.
  """

  def __init__(self, value: dict[str, Any]) -> None:
    self.value = value

  def serialize(self) -> str:
    """As TensorFlow asks for it."""
    return json.dumps(self.value)

  def deserialize(self, string_value: str) -> None:
    """As TensorFlow gives it."""
    self.value = json.loads(string_value)


class Checkpoints:
  """Keeps the newest checkpoints of one run in one directory.

  TensorFlow names a checkpoint in the directory's index only once it is
  complete, so a run that is killed while it writes one has the one before.

  Args:
    directory: where to keep them.
    tracked: variables, optimizers and modules to save, by name.
    state: further state.
    fingerprint: what the run is about; a checkpoint of another one is refused.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    tracked: Mapping[str, Any],
    state: JsonState,
    fingerprint: Mapping[str, Any],
  ) -> None:
    self._directory = os.fspath(directory)
    # As it comes back from a checkpoint, where a tuple is a list.
    self._fingerprint = json.loads(json.dumps(fingerprint))
    self._state = state
    self._checkpoint = tf.train.Checkpoint(state=state, **tracked)
    try:
      os.makedirs(self._directory, exist_ok=True)
    except OSError as error:
      raise TrainingError(
        f"checkpoint directory {self._directory!r} cannot be made: {error}"
      ) from error
    self._manager = tf.train.CheckpointManager(
      self._checkpoint, self._directory, max_to_keep=2
    )

  def restore(self) -> bool:
    """Restores the newest checkpoint; false if there is none.

    Raises:
      TrainingError: it is of another run, or cannot be read.
    """
    newest = self._manager.latest_checkpoint
    if newest is None:
      return False
    self._check_same_run(newest)
    _reading(newest, lambda: self._restore(newest))
    return True

  def _restore(self, newest: str) -> None:
    status = self._checkpoint.restore(newest)
    status.assert_existing_objects_matched()

  def _check_same_run(self, newest: str) -> None:
    found = JsonState({})
    probe = tf.train.Checkpoint(state=found)
    _reading(newest, lambda: probe.restore(newest).expect_partial())
    theirs = found.value.get("fingerprint", {})
    for key, value in self._fingerprint.items():
      if theirs.get(key) != value:
        raise TrainingError(
          f"checkpoint {newest!r} is of another run: its {key} is"
          f" {_short(theirs.get(key))}, not {_short(value)}; use another"
          " --checkpoint_dir"
        )

  def save(self, number: int) -> None:
    """Writes the checkpoint of step `number` of the run."""
    self._state.value["fingerprint"] = self._fingerprint
    self._manager.save(checkpoint_number=number)


def _reading(newest: str, read: Callable[[], Any]) -> None:
  try:
    read()
  except (tf.errors.OpError, AssertionError, ValueError) as error:
    reason = " ".join(str(error).split())[:300]
    raise TrainingError(
      f"checkpoint {newest!r} cannot be read: {reason}"
    ) from error


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 120 else text[:117] + "..."

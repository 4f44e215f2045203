"""Checkpoints from which a run goes on as if it had never stopped."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from tfplace.errors import TrainingError, shown
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

  Raises:
    TrainingError: the directory cannot be made, or its index cannot be read.
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
    self._manager = self._open()

  def _open(self) -> tf.train.CheckpointManager:
    """The manager; TensorFlow's own ignores an index that it cannot parse.

    A run that is killed before its first checkpoint is complete has no index.
    """
    index = os.path.join(self._directory, "checkpoint")
    with _reading(index):
      manager = tf.train.CheckpointManager(
        self._checkpoint, self._directory, max_to_keep=2
      )
    if manager.latest_checkpoint is None and os.path.lexists(index):
      raise TrainingError(f"{index!r} is no index of checkpoints")
    return manager

  def restore(self) -> bool:
    """Restores the newest checkpoint; false if there is none.

    Raises:
      TrainingError: it is of another run, or cannot be read.
    """
    newest = self._manager.latest_checkpoint
    if newest is None:
      return False
    self._check_same_run(newest)
    with _reading(newest):
      status = self._checkpoint.restore(newest)
      status.assert_existing_objects_matched()
    return True

  def _check_same_run(self, newest: str) -> None:
    found = JsonState({})
    probe = tf.train.Checkpoint(state=found)
    with _reading(newest):
      probe.restore(newest).expect_partial()
    theirs = found.value.get("fingerprint", {})
    for key, value in self._fingerprint.items():
      if theirs.get(key) != value:
        raise TrainingError(
          f"checkpoint {newest!r} is of another run: its {key} is"
          f" {shown(theirs.get(key))}, not {shown(value)}; use another"
          " --checkpoint_dir"
        )

  def save(self, number: int) -> None:
    """Writes the checkpoint of step `number` of the run.

    Raises:
      TrainingError: it cannot be written; the one before is still there.
    """
    self._state.value["fingerprint"] = self._fingerprint
    with writing(self._directory):
      self._manager.save(checkpoint_number=number)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  try:
    yield
  except Exception as error:  # a damaged file makes TensorFlow raise anything
    raise TrainingError(
      f"checkpoint {path!r} cannot be read: {_reason(error)}"
    ) from error


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
  """Names the path where TensorFlow cannot write to it.

  Raises:
    TrainingError: what is inside raised an error of files.
  """
  try:
    yield
  except (OSError, tf.errors.OpError) as error:
    raise TrainingError(
      f"{path!r} cannot be written: {_reason(error)}"
    ) from error


def _reason(error: Exception) -> str:
  return " ".join(str(error).split())[:300] or type(error).__name__

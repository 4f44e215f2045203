"""Checkpoints of training runs, and weights of exported policies."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfplace.errors import TrainingError, shown
from tfplace.learned.policies import load_policy


class JsonState(tf.train.experimental.PythonState):
  """Plain JSON state of a run, stored in the checkpoint."""

  def __init__(self, value: dict[str, Any]) -> None:
    self.value = value

  def serialize(self) -> str:
    return json.dumps(self.value)

  def deserialize(self, string_value: str) -> None:
    self.value = json.loads(string_value)


def restore_network(
  directory: str | os.PathLike[str], strategy: str, network_type: type
) -> tuple[Any, list[tf.Variable]]:
  """Loads the sizes (a `network_type`) and weights of an exported policy.

  Raises:
    TrainingError: There is no policy of this strategy and feature version, or
      its network has unsupported options.
  """
  policy = load_policy(directory, strategy)
  sizes = policy.info["network"]
  fields = {field.name: field for field in dataclasses.fields(network_type)}
  for name, value in sorted(sizes.items()):
    if name not in fields or not _is_like(value, fields[name].default):
      raise TrainingError(
        f"policy {os.fspath(directory)!r} has a network with"
        f" {name}={shown(value)}, which cannot be trained"
      )
  return network_type(**sizes), policy.weights


def _is_like(value: Any, default: Any) -> bool:
  """Returns whether a value of JSON has the type of a field's default."""
  if default is None or isinstance(default, tuple):
    return value is None or isinstance(value, bool | list)
  return type(value) is type(default)


class Checkpoints:
  """Keeps the latest checkpoints of one run in a directory.

  TensorFlow adds a checkpoint to the index only once it is complete. A run that
  is killed while writing keeps the previous checkpoint.

  Args:
    tracked: Name -> variable, optimizer or module to save.
    fingerprint: Identity of the run; checkpoints of other runs are rejected.

  Raises:
    TrainingError: The directory cannot be created, or its index cannot be read.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    tracked: Mapping[str, Any],
    state: JsonState,
    fingerprint: Mapping[str, Any],
  ) -> None:
    self._directory = os.fspath(directory)
    # The round trip converts tuples to lists, as in a restored checkpoint.
    self._fingerprint = json.loads(json.dumps(fingerprint))
    self._state = state
    self._checkpoint = tf.train.Checkpoint(state=state, **tracked)
    try:
      os.makedirs(self._directory, exist_ok=True)
    except OSError as error:
      raise TrainingError(
        f"checkpoint directory {self._directory!r} cannot be made: {error}"
      ) from error
    index = os.path.join(self._directory, "checkpoint")
    with _reading(index):
      self._manager = tf.train.CheckpointManager(
        self._checkpoint, self._directory, max_to_keep=2
      )
    # TensorFlow ignores an invalid index.
    if self._manager.latest_checkpoint is None and os.path.lexists(index):
      raise TrainingError(f"{index!r} is no index of checkpoints")

  def restore(self) -> bool:
    """Restores the latest checkpoint; returns False if there is none.

    Raises:
      TrainingError: The checkpoint belongs to another run or cannot be read.
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
    saved = JsonState({})
    probe = tf.train.Checkpoint(state=saved)
    with _reading(newest):
      probe.restore(newest).expect_partial()
    other = saved.value.get("fingerprint", {})
    for key, value in self._fingerprint.items():
      if other.get(key) != value:
        raise TrainingError(
          f"checkpoint {newest!r} is of another run: its {key} is"
          f" {shown(other.get(key))}, not {shown(value)}; use another"
          " --checkpoint_dir"
        )

  def save(self, number: int) -> None:
    """Writes the checkpoint of step `number`.

    Raises:
      TrainingError: It cannot be written; the previous one is kept.
    """
    self._state.value["fingerprint"] = self._fingerprint
    with writing(self._directory):
      self._manager.save(checkpoint_number=number)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  try:
    yield
  # A damaged file makes TensorFlow raise arbitrary errors.
  except Exception as error:
    raise TrainingError(
      f"checkpoint {path!r} cannot be read: {_reason(error)}"
    ) from error


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
  """Converts write errors to a `TrainingError` that names the path."""
  try:
    yield
  except (OSError, tf.errors.OpError) as error:
    raise TrainingError(
      f"{path!r} cannot be written: {_reason(error)}"
    ) from error


def _reason(error: Exception) -> str:
  return " ".join(str(error).split())[:300] or type(error).__name__

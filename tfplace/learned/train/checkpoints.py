"""The moving average of a policy's weights over a training run.

Each step of PPO sees one graph, and moves the policy towards it: the average
is better on all of them, and on graphs that are in none (Polyak and Juditsky
1992). It is what gets exported; what draws placements is the policy itself.

Checkpoints from which a run goes on as if it had never stopped."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfplace.errors import TrainingError, shown


class MovingAverage(tf.Module):
  """Weights that follow others.

  Args:
    weights: what is followed.
    average: variables of the same shapes; they take over the values of now.
    decay: share of the average that each step keeps, in the long run. Of a
      short run the average is over the last tenth: after n steps a step keeps
      at most (1 + n) / (10 + n), as in `tf.train.ExponentialMovingAverage`.
  """

  def __init__(
    self,
    weights: Sequence[tf.Variable],
    average: Sequence[tf.Variable],
    decay: float,
  ) -> None:
    super().__init__(name="moving_average")
    self._pairs = list(zip(average, weights, strict=True))
    self._decay = decay
    self._steps = tf.Variable(0.0, trainable=False, name="steps")
    self.step = tf.function(self._step, autograph=False)
    self.restart()

  def restart(self) -> None:
    """Takes over the weights as they are."""
    self._steps.assign(0.0)
    for average, weight in self._pairs:
      average.assign(weight)

  def _step(self) -> None:
    """Moves the average towards the weights, once."""
    steps = self._steps.assign_add(1.0)
    keep = tf.minimum(self._decay, (1.0 + steps) / (10.0 + steps))
    for average, weight in self._pairs:
      average.assign(weight + keep * (average - weight))


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

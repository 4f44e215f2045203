"""Writes a policy as a SavedModel of plain TensorFlow ops.

For a training process; `tfplace.learned.exported` reads it in any.
"""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfplace.errors import FormatError, TrainingError
from tfplace.formats import files
from tfplace.learned import Signature, find_method
from tfplace.learned.exported import FORMAT, INFO_FILE, Exportable


def export_policy(
  policy: Exportable,
  directory: str | os.PathLike[str],
  add: Callable[[pathlib.Path], None] | None = None,
) -> None:
  """Writes a policy, whole or not at all; replaces one that is there.

  Args:
    policy: what to write.
    directory: where to.
    add: writes further files into the folder that it is given.

  Raises:
    TrainingError: `directory` exists and is not an exported policy, or cannot
      be written.
  """
  target = pathlib.Path(os.path.realpath(directory))
  check_export_dir(target)
  # The module must not track Keras layers: loading would look for Keras 2.
  module = tf.Module(name="exported_policy")
  module.weights = list(policy.variables)
  for name, function in policy.functions.items():
    setattr(module, name, function)
  info = {
    "format": FORMAT,
    "strategy": policy.strategy,
    "features": find_method(policy.strategy).version,
    "network": dict(policy.network),
    "weights": len(module.weights),
    "decisions": list(policy.decisions),
  }
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.new_folder(str(target.parent)) as made:
      tf.saved_model.save(module, made)
      (pathlib.Path(made) / INFO_FILE).write_text(
        json.dumps(info, indent=2) + "\n", encoding="utf-8"
      )
      if add is not None:
        add(pathlib.Path(made))
      files.put_folder(made, str(target))
  except (OSError, tf.errors.OpError, FormatError) as error:
    raise TrainingError(
      f"policy directory {str(target)!r} cannot be written: {error}"
    ) from error


def check_export_dir(directory: str | os.PathLike[str]) -> None:
  """Checks that `export_policy` may replace a directory.

  Raises:
    TrainingError: it is a file, holds something else than a policy, or
      nothing can be written beside it.
  """
  target = pathlib.Path(directory)
  if target.is_file():
    raise TrainingError(f"{str(target)!r} is a file, not a directory")
  if (
    target.is_dir()
    and any(target.iterdir())
    and not (target / INFO_FILE).exists()
  ):
    raise TrainingError(
      f"directory {str(target)!r} is not empty and holds no exported policy"
    )
  parent = os.path.dirname(os.path.realpath(target))
  try:
    if os.path.isdir(parent):
      with files.new_folder(parent):
        pass
  except OSError as error:
    raise TrainingError(
      f"policy directory {str(target)!r} cannot be written: {error.strerror}"
    ) from error


def as_function(
  method: Callable[..., Any], signature: Signature
) -> tf.types.experimental.PolymorphicFunction:
  """A function to export.

  Args:
    method: takes the arguments by name, and returns tensors.
    signature: its arguments.
  """
  specs = [tf.TensorSpec(s, t, n) for n, (s, t) in signature.items()]

  @tf.function(input_signature=specs, autograph=False)
  def call(*tensors: tf.Tensor) -> Any:
    return method(**dict(zip(signature, tensors, strict=True)))

  return call

"""Writes a policy as a SavedModel of plain TensorFlow ops.

For the training process only; `tfplace.learned.exported` reads it anywhere.
"""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfplace.errors import FormatError, TrainingError
from tfplace.formats import files
from tfplace.learned.exported import FORMAT, INFO_FILE, Exportable, load_policy


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
    "features": policy.features,
    "network": dict(policy.network),
    "weights": len(module.weights),
    "decisions": list(policy.decisions),
    "hints": list(policy.hints),
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


def restore_network(
  directory: str | os.PathLike[str], strategy: str, version: int
) -> tuple[dict[str, Any], list[tf.Variable]]:
  """The sizes and weights of an exported policy, to train it further.

  Raises:
    TrainingError: no exported policy of that strategy and version of features
      is there.
  """
  policy = load_policy(directory, strategy, version)
  sizes = dict(policy.info["network"])
  if strategy == "gdp":
    sizes["axes"] = policy.axes
  return sizes, policy.weights

"""Export of policies as SavedModels."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfplace.errors import FormatError, TrainingError
from tfplace.formats import files
from tfplace.learned import Signature, policy_format
from tfplace.learned.policy_format import INFO_FILE, Exportable


def export_policy(
  policy: Exportable,
  directory: str | os.PathLike[str],
  add: Callable[[pathlib.Path], None] | None = None,
) -> None:
  """Writes a policy atomically; replaces an existing one.

  Args:
    add: Writes further files into the folder that it is given.

  Raises:
    TrainingError: `directory` exists and is not an exported policy, or cannot
      be written.
  """
  target = pathlib.Path(os.path.realpath(directory))
  policy_format.check_export_dir(target)
  # The module must not track Keras layers, because loading would need Keras 2.
  module = tf.Module(name="exported_policy")
  module.weights = list(policy.variables)
  for name, function in policy.functions.items():
    setattr(module, name, function)
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.new_folder(str(target.parent)) as made:
      tf.saved_model.save(module, made)
      (pathlib.Path(made) / INFO_FILE).write_text(
        json.dumps(policy.info(), indent=2) + "\n", encoding="utf-8"
      )
      if add is not None:
        add(pathlib.Path(made))
      policy_format.check_export_dir(target)  # Writing may take minutes.
      files.put_folder(made, str(target))
  except (OSError, tf.errors.OpError, FormatError) as error:
    raise TrainingError(
      f"policy directory {str(target)!r} cannot be written: {error}"
    ) from error


def as_function(
  method: Callable[..., Any], signature: Signature
) -> tf.types.experimental.PolymorphicFunction:
  """Wraps a method with keyword arguments as a function to export."""
  specs = [tf.TensorSpec(s, t, n) for n, (s, t) in signature.items()]

  @tf.function(input_signature=specs, autograph=False)
  def call(*tensors: tf.Tensor) -> Any:
    return method(**dict(zip(signature, tensors, strict=True)))

  return call

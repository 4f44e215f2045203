"""Reads and runs an exported policy; needs the base install only."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.errors import TrainingError
from tfplace.policies import features

FORMAT = "tfplace.policy.v1"
INFO_FILE = "policy.json"
SHIPPED = pathlib.Path(__file__).parent / "pretrained"


class Policy:
  """A policy ready to run.

  Attributes:
    info: content of its `policy.json`.
    directory: where it came from.
  """

  def __init__(self, directory: pathlib.Path, info: Mapping[str, Any]) -> None:
    import tensorflow as tf  # takes seconds; only when a policy runs

    self.directory = directory
    self.info = info
    try:
      self._module = tf.saved_model.load(str(directory))
    except Exception as error:  # TensorFlow raises many kinds
      reason = " ".join(str(error).split())
      raise TrainingError(
        f"policy {str(directory)!r} cannot be loaded: {reason}"
      ) from error

  @property
  def weights(self) -> list[Any]:
    """The policy's variables, in the order in which its network has them."""
    return list(self._module.weights)

  def logits(self, problem_features: features.Features) -> np.ndarray:
    """[num_decisions, num_devices] float32, about -1e9 where not allowed."""
    import tensorflow as tf

    tensors = problem_features.tensors().values()
    return self._module.logits(*map(tf.constant, tensors)).numpy()


def load_policy(directory: str | os.PathLike[str]) -> Policy:
  """Loads an exported policy.

  Raises:
    TrainingError: the directory holds none, or one of another version.
  """
  path = pathlib.Path(directory)
  try:
    info = json.loads((path / INFO_FILE).read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise TrainingError(
      f"{str(path)!r} holds no policy: it has no {INFO_FILE}"
    ) from error
  except (OSError, ValueError) as error:
    raise TrainingError(
      f"{str(path / INFO_FILE)!r} cannot be read: {error}"
    ) from error
  found = info.get("format") if isinstance(info, dict) else None
  if found != FORMAT:
    raise TrainingError(
      f"{str(path / INFO_FILE)!r} has format {found!r}, not {FORMAT!r}"
    )
  if info.get("features") != features.VERSION:
    raise TrainingError(
      f"policy {str(path)!r} was trained on features of version"
      f" {info.get('features')!r}; this tfplace has {features.VERSION}"
    )
  return Policy(path, info)


def load_shipped(strategy: str) -> Policy:
  """Loads the policy that ships with the package.

  Raises:
    TrainingError: none ships for the strategy.
  """
  return load_policy(SHIPPED / strategy)

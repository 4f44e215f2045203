"""Format of exported policies, without TensorFlow."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import FormatError, TrainingError, shown
from tfplace.formats import codec, files, json_file
from tfplace.learned import find_method

FORMAT = "tfplace.policy.v1"
INFO_FILE = "policy.json"
PLACEMENTS = "placements"  # Folder of the best placements of the training.
_MOST_BYTES = 1 << 20  # Shipped policies have 2,000.
_MOST_AXES = 64  # Shipped policies have 3.
# All that an exported policy contains.
_CONTENT = re.compile(
  rf"{re.escape(INFO_FILE)}|(saved_model|fingerprint)\.pb|assets"
  rf"|variables(/variables\.[^/]+)?|{PLACEMENTS}(/[^/]+\.json)?"
)


class PolicyInputs:
  """Base of the dataclasses of policy inputs.

  Attributes:
    allowed: [N, D] bool, True where a decision can be on a device.
  """

  allowed: np.ndarray

  @property
  def num_decisions(self) -> int:
    return self.allowed.shape[0]

  @property
  def num_devices(self) -> int:
    return self.allowed.shape[1]

  def tensors(self) -> dict[str, np.ndarray]:
    """Maps field names to arrays, the first arguments of a policy."""
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)  # type: ignore[arg-type]
    }


@dataclasses.dataclass(frozen=True)
class _Info:
  """Content of `policy.json`; see `Exportable`."""

  strategy: str
  features: int
  network: Mapping[str, Any]
  weights: int | None = None
  decisions: Sequence[int | None] = ()


@dataclasses.dataclass(frozen=True)
class Exportable:
  """Trained policy as written by `export.export_policy`.

  Attributes:
    strategy: Name of the strategy, such as "gdp".
    network: Sizes of the network as plain JSON values.
    variables: `tf.Variable`s in the order of the network.
    functions: Name -> `tf.function` of plain tensors with an input signature.
    decisions: Numbers of decisions used in training, None for one per group.
      Empty if unknown.
  """

  strategy: str
  network: Mapping[str, Any]
  variables: list[Any]
  functions: Mapping[str, Any]
  decisions: Sequence[int | None] = ()

  def info(self) -> dict[str, Any]:
    """Returns the content of `policy.json`."""
    return {
      "format": FORMAT,
      "strategy": self.strategy,
      "features": find_method(self.strategy).version,
      "network": dict(self.network),
      "weights": len(self.variables),
      "decisions": list(self.decisions),
    }


def read_info(
  directory: str | os.PathLike[str], strategy: str
) -> dict[str, Any]:
  """Reads and checks the `policy.json` of a policy.

  Raises:
    TrainingError: The directory contains no policy, one of another strategy or
      feature version, or an invalid one.
  """
  path = pathlib.Path(directory) / INFO_FILE
  if not os.path.lexists(path):
    raise TrainingError(
      f"{str(path.parent)!r} holds no policy: it has no {INFO_FILE}"
    )
  info = _read(path)
  where = f"policy {str(path.parent)!r}"
  if info.get("strategy") != strategy:
    raise TrainingError(
      f"{where} is of strategy {shown(info.get('strategy'))}, not {strategy!r}"
    )
  version = find_method(strategy).version
  if info.get("features") != version:
    raise TrainingError(
      f"{where} was trained on features of version"
      f" {shown(info.get('features'))}; this tfplace has {version}"
    )
  try:
    axes = codec.from_json(_Info, info, "the file").network.get("axes", 0)
  except FormatError as error:
    raise TrainingError(f"{path}: {error}") from error
  if type(axes) is not int or not 0 <= axes <= _MOST_AXES:
    raise TrainingError(
      f"{path}: network: axes: {shown(axes)} is not from 0 to {_MOST_AXES}"
    )
  return info


def _read(path: pathlib.Path) -> dict[str, Any]:
  try:
    return json_file.read_json(path, FORMAT, _MOST_BYTES)
  except FormatError as error:
    raise TrainingError(str(error)) from error


def check_export_dir(directory: str | os.PathLike[str]) -> None:
  """Checks that an exported policy can replace a directory.

  Raises:
    TrainingError: The path is a file, contains anything else than an exported
      policy, or its parent is not writable.
  """
  target = os.fspath(directory)
  try:
    if os.path.lexists(target) and not os.path.isdir(target):
      raise TrainingError(f"{target!r} is a file, not a directory")
    if os.path.isdir(target) and os.listdir(target):
      _check_replaceable(pathlib.Path(target))
    parent = os.path.dirname(os.path.realpath(target))
    if os.path.isdir(parent):
      with files.new_folder(parent):
        pass
  except (OSError, ValueError) as error:  # A null character.
    reason = getattr(error, "strerror", None) or error
    raise TrainingError(
      f"policy directory {target!r} cannot be written: {reason}"
    ) from error


def _check_replaceable(target: pathlib.Path) -> None:
  """Checks that a directory contains an exported policy and nothing else."""
  try:
    _read(target / INFO_FILE)
  except TrainingError as error:
    raise TrainingError(
      f"directory {str(target)!r} is not empty and holds no exported policy"
      f" ({error}), so it is not replaced; give another directory"
    ) from error
  for parent, folders, names in os.walk(target):
    for name in sorted([*folders, *names]):
      path = os.path.relpath(os.path.join(parent, name), target)
      if not _CONTENT.fullmatch(path):
        raise TrainingError(
          f"directory {str(target)!r} holds {path!r}, which is no part of an"
          " exported policy, so it is not replaced; move it, or give another"
          " directory"
        )

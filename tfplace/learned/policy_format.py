"""Format of exported policies, without TensorFlow."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import TrainingError
from tfplace.learned import find_method

FORMAT = "tfplace.policy.v1"
INFO_FILE = "policy.json"


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
    TrainingError: The directory contains no policy, or one of another strategy
      or feature version.
  """
  path = pathlib.Path(directory) / INFO_FILE
  try:
    info = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError as error:
    raise TrainingError(
      f"{str(path.parent)!r} holds no policy: it has no {INFO_FILE}"
    ) from error
  except (OSError, ValueError) as error:
    raise TrainingError(f"{str(path)!r} cannot be read: {error}") from error
  found = info.get("format") if isinstance(info, dict) else None
  if found != FORMAT:
    raise TrainingError(f"{str(path)!r} has format {found!r}, not {FORMAT!r}")
  where = f"policy {str(path.parent)!r}"
  if info.get("strategy") != strategy:
    raise TrainingError(
      f"{where} is of strategy {info.get('strategy')!r}, not {strategy!r}"
    )
  version = find_method(strategy).version
  if info.get("features") != version:
    raise TrainingError(
      f"{where} was trained on features of version {info.get('features')!r};"
      f" this tfplace has {version}"
    )
  return info

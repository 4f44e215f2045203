"""Exported policies: loading and inference with the base install.

`tfplace.learned.export` writes policies.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import ExtractionError, TrainingError
from tfplace.learned import find_method

FORMAT = "tfplace.policy.v1"
INFO_FILE = "policy.json"
SHIPPED = pathlib.Path(__file__).parent / "pretrained"


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


class Policy:
  """Loaded policy.

  Attributes:
    info: Content of its `policy.json`.

  Raises:
    TrainingError: The policy cannot be loaded or was not exported by tfplace.
      In the latter case none of its code has run.
  """

  def __init__(self, directory: pathlib.Path, info: Mapping[str, Any]) -> None:
    # TensorFlow takes seconds to import, so it is imported only to run a
    # policy.
    from tfplace.extraction.safety import safe_loading
    from tfplace.learned import export

    self.info = info
    path = str(directory)
    try:
      self._module = safe_loading.load(
        path, lambda graph: export.check_policy(graph, info["strategy"], path)
      )
    except ExtractionError as error:
      raise TrainingError(
        f"policy {path!r} cannot be loaded: {error}"
      ) from error

  @property
  def weights(self) -> list[Any]:
    """Variables in the order of the network."""
    return list(self._module.weights)

  @property
  def axes(self) -> int:
    """Number of op-name axes that a GDP policy observes; 0 for none."""
    return int(self.info.get("network", {}).get("axes", 0))

  def decisions(self, most: int | None = None) -> tuple[int | None, ...]:
    """Returns the numbers of decisions to place at; None is every group.

    These are the numbers used in training up to `most`, or `most` if unknown.
    """
    trained = self.info.get("decisions") or [most]
    if most is None:
      return tuple(dict.fromkeys(trained))
    return tuple(dict.fromkeys(min(n or most, most) for n in trained))

  def run(self, function: str, arrays: Iterable[np.ndarray]) -> Any:
    """Calls an exported function and returns its result as arrays."""
    import tensorflow as tf

    result = getattr(self._module, function)(*map(tf.constant, arrays))
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), result)

  def logits(self, inputs: PolicyInputs) -> np.ndarray:
    """Computes [N, D] float32 GDP logits, about -1e9 where not allowed."""
    return self.run("logits", inputs.tensors().values())


def load_policy(
  directory: str | os.PathLike[str], strategy: str = "gdp"
) -> Policy:
  """Loads an exported policy.

  Raises:
    TrainingError: The directory contains no policy, or one of another strategy
      or feature version.
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
  _check(path, info, strategy)
  return Policy(path, info)


def _check(path: pathlib.Path, info: Any, strategy: str) -> None:
  found = info.get("format") if isinstance(info, dict) else None
  if found != FORMAT:
    raise TrainingError(
      f"{str(path / INFO_FILE)!r} has format {found!r}, not {FORMAT!r}"
    )
  if info.get("strategy") != strategy:
    raise TrainingError(
      f"policy {str(path)!r} is of strategy {info.get('strategy')!r}, not"
      f" {strategy!r}"
    )
  version = find_method(strategy).version
  if info.get("features") != version:
    raise TrainingError(
      f"policy {str(path)!r} was trained on features of version"
      f" {info.get('features')!r}; this tfplace has {version}"
    )
  if info.get("hints") == [True]:
    raise TrainingError(
      f"policy {str(path)!r} was trained to see a placement to start from,"
      " which tfplace no longer shows to policies; train one without --hint"
    )


def load_placers_policy(strategy: str, directory: str | None) -> Policy:
  """Loads the given policy, or the shipped one for None.

  Raises:
    TrainingError: No policy of the strategy ships; see also `load_policy`.
  """
  if directory is None:
    shipped = SHIPPED / strategy
    if not (shipped / INFO_FILE).exists():
      raise TrainingError(
        f"no policy of strategy {strategy!r} ships with tfplace; train one"
        " with tfplace-train and name its directory"
      )
    # Shipped policies never change, so they are cached.
    return _shipped(shipped, strategy)
  return load_policy(directory, strategy)


_shipped = functools.lru_cache(maxsize=4)(load_policy)

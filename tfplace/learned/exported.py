"""Reads and runs an exported policy; needs the base install only.

What the inputs of every policy have in common."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import ExtractionError, TrainingError
from tfplace.learned.gdp import features

FORMAT = "tfplace.policy.v1"
INFO_FILE = "policy.json"
SHIPPED = pathlib.Path(__file__).parent / "pretrained"


@dataclasses.dataclass(frozen=True)
class Exportable:
  """A trained policy as `export.export_policy` writes it.

  Attributes:
    strategy: its name, such as "gdp".
    features: version of the features that it sees.
    network: sizes of its network, plain JSON values.
    variables: `tf.Variable`s, in the order in which its network has them.
    functions: name -> `tf.function` with an input signature, of plain tensors.
    decisions: numbers of decisions that it was trained at, None for every
      group; () where that is not known.
    hints: whether it saw a good placement among its features; both where it
      was trained either way.
  """

  strategy: str
  features: int
  network: Mapping[str, Any]
  variables: list[Any]
  functions: Mapping[str, Any]
  decisions: Sequence[int | None] = ()
  hints: Sequence[bool] = (False,)


class Policy:
  """A policy ready to run.

  Attributes:
    info: content of its `policy.json`.
    directory: where it came from.

  Raises:
    TrainingError: it cannot be loaded, or is none that tfplace exported, in
      which case nothing of it has run.
  """

  def __init__(self, directory: pathlib.Path, info: Mapping[str, Any]) -> None:
    # TensorFlow takes seconds to import; only when a policy runs.
    from tfplace.extraction.safety import safe_loading
    from tfplace.learned import known_policy

    self.directory = directory
    self.info = info
    path = str(directory)
    try:
      self._module = safe_loading.load(
        path, lambda graph: known_policy.check(graph, info["strategy"], path)
      )
    except ExtractionError as error:
      raise TrainingError(
        f"policy {path!r} cannot be loaded: {error}"
      ) from error

  @property
  def weights(self) -> list[Any]:
    """The policy's variables, in the order in which its network has them."""
    return list(self._module.weights)

  @property
  def axes(self) -> int:
    """Of the ops' names, whose features a GDP policy sees; policies from
    before there were such features see none."""
    return int(self.info.get("network", {}).get("axes", 0))

  def decisions(self, most: int | None = None) -> tuple[int | None, ...]:
    """Numbers of decisions to place at: those that it was trained at.

    Args:
      most: that its placer can do with; None is every group. It is also the
        answer for policies that do not say what they were trained at.
    """
    trained = self.info.get("decisions") or [most]
    if most is None:
      return tuple(dict.fromkeys(trained))
    return tuple(dict.fromkeys(min(n or most, most) for n in trained))

  @property
  def hints(self) -> tuple[bool, ...]:
    """Whether to show it a placement to improve on, as in its training.

    Policies that do not say so are shown none.
    """
    return tuple(sorted(self.info.get("hints") or [False]))

  def run(self, function: str, arrays: Iterable[np.ndarray]) -> Any:
    """Calls one of its functions; returns its result as arrays."""
    import tensorflow as tf

    result = getattr(self._module, function)(*map(tf.constant, arrays))
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), result)

  def logits(self, problem_features: features.Features) -> np.ndarray:
    """[num_decisions, num_devices] float32, about -1e9 where not allowed.

    Of policies of one shot (GDP).
    """
    return self.run("logits", problem_features.tensors().values())


def load_policy(
  directory: str | os.PathLike[str],
  strategy: str = "gdp",
  version: int = features.VERSION,
) -> Policy:
  """Loads an exported policy.

  Args:
    directory: where it is.
    strategy: that it must be of.
    version: of the strategy's features.

  Raises:
    TrainingError: the directory holds none, or one of another strategy or
      version.
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
  _check(path, info, strategy, version)
  return Policy(path, info)


def _check(path: pathlib.Path, info: Any, strategy: str, version: int) -> None:
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
  if info.get("features") != version:
    raise TrainingError(
      f"policy {str(path)!r} was trained on features of version"
      f" {info.get('features')!r}; this tfplace has {version}"
    )


def load_placers_policy(
  strategy: str, directory: str | None, version: int
) -> Policy:
  """The policy that a placer was given, or else the one that ships.

  Raises:
    TrainingError: none ships for the strategy; or see `load_policy`.
  """
  if directory is None:
    shipped = SHIPPED / strategy
    if not (shipped / INFO_FILE).exists():
      raise TrainingError(
        f"no policy of strategy {strategy!r} ships with tfplace; train one"
        " with tfplace-train and name its directory"
      )
    return _shipped(os.fspath(shipped), strategy, version)
  return load_policy(directory, strategy, version)


@functools.lru_cache(maxsize=4)
def _shipped(directory: str, strategy: str, version: int) -> Policy:
  """The policy in the package: it does not change while the process runs."""
  return load_policy(directory, strategy, version)


class PolicyInputs:
  """Base of the dataclasses of arrays that policies read.

  Attributes:
    allowed: [N, D] bool: which decisions may be on which devices.
  """

  allowed: np.ndarray

  @property
  def num_decisions(self) -> int:
    return self.allowed.shape[0]

  @property
  def num_devices(self) -> int:
    return self.allowed.shape[1]

  def tensors(self) -> dict[str, np.ndarray]:
    """Field name -> array: the first arguments of a policy."""
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)  # type: ignore[arg-type]
    }

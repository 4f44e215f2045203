"""Extracts a SavedModel's signature as an inference step."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from tfplace.errors import ExtractionError
from tfplace.extraction.inlining import functions
from tfplace.extraction.safety import safe_loading
from tfplace.extraction.traced import TracedStep, checked_batch_size

DEFAULT_SIGNATURE = "serving_default"


def trace_saved_model(
  directory: str | os.PathLike[str],
  batch_size: int | None = None,
  signature: str | None = None,
  allow_side_effects: bool = False,
) -> TracedStep:
  """One call of a signature.

  Args:
    directory: of a SavedModel of TensorFlow 1 or 2.
    batch_size: stands for an unknown first dimension of the inputs; 32 by
      default.
    signature: its key; "serving_default", or the only one, by default.
    allow_side_effects: loading the model may touch files (beyond its own),
      processes and Python: TensorFlow runs what initialises its resources.

  Raises:
    ExtractionError: not a SavedModel, damaged, no such signature, an input of
      unknown shape, or an op that is not allowed.
  """
  return flatten_signature(
    directory, batch_size, signature, allow_side_effects
  ).traced


@dataclasses.dataclass(frozen=True)
class FlatSignature:
  """One call of a signature, and where its nodes are in the SavedModel.

  Attributes:
    key: of the signature.
    traced: the call.
    origins: node -> the path to it from the signature's function: a node of
      that function, the attribute by which it calls ("" where its op does), a
      node of the function it calls, and so on. Without what joins bodies.
    captures: node of a variable -> its place among the captured inputs.
  """

  key: str
  traced: TracedStep
  origins: Mapping[str, tuple[str, ...]]
  captures: Mapping[str, int]


def flatten_signature(
  directory: str | os.PathLike[str],
  batch_size: int | None = None,
  signature: str | None = None,
  allow_side_effects: bool = False,
) -> FlatSignature:
  """As `trace_saved_model`, and where its nodes come from."""
  path = os.fspath(directory)
  size = checked_batch_size(batch_size, path)
  if allow_side_effects:
    safe_loading.read(path)  # says what is wrong with it
    loaded = safe_loading.load_unchecked(path, path)
  else:
    loaded = safe_loading.load(path)
  key, function = _signature(loaded, path, signature)
  static = functions.static_shapes(function, size)
  flat = functions.flatten_function(
    static, name=os.path.basename(os.path.normpath(path))
  )
  places = {id(t): i for i, t in enumerate(function.captured_inputs)}
  # The variables' values were copied, so `loaded` may go.
  return FlatSignature(
    key=key,
    traced=flat.traced,
    origins=_origins(flat, function, wrapped=static is not function),
    captures={
      node: places[handle]
      for node, handle in flat.handles.items()
      if handle in places
    },
  )


def _origins(
  flat: functions.FlatFunction, function: Any, wrapped: bool
) -> dict[str, tuple[str, ...]]:
  """The paths from the signature's function, not from one that calls it."""
  nodes = [node.name for node in flat.traced.graph_def.node]
  if wrapped:
    inside = {n: flat.origins[n][2:] for n in nodes if n in flat.origins}
    return {name: path for name, path in inside.items() if path}
  own = {op.name for op in function.graph.get_operations()}
  paths = {name: (name,) for name in nodes if name in own}
  return {**paths, **{n: flat.origins[n] for n in nodes if n in flat.origins}}


def _signature(loaded: Any, path: str, key: str | None) -> tuple[str, Any]:
  signatures = dict(getattr(loaded, "signatures", {}))
  if key is None and len(signatures) == 1:
    return next(iter(signatures.items()))
  wanted = DEFAULT_SIGNATURE if key is None else key
  if wanted not in signatures:
    known = ", ".join(map(repr, sorted(signatures))) or "none"
    raise ExtractionError(
      f"SavedModel {path!r} has no signature {wanted!r}; it has {known}"
    )
  return wanted, signatures[wanted]

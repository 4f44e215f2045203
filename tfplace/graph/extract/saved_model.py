"""Extracts a SavedModel's signature as an inference step."""

import os
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfplace.errors import ExtractionError
from tfplace.graph.extract import batch, functions, proto_file, side_effects
from tfplace.graph.extract.traced import TracedStep

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
  path = os.fspath(directory)
  size = batch.checked(batch_size, path)
  loaded = _load(path, allow_side_effects)
  function = _signature(loaded, path, signature)
  traced = functions.trace_function(
    function,
    batch_size=size,
    name=os.path.basename(os.path.normpath(path)),
  )
  # The variables' values were copied, so `loaded` may go.
  return traced


def _load(path: str, allow_side_effects: bool) -> Any:
  names = ("saved_model.pb", "saved_model.pbtxt")
  files = [os.path.join(path, name) for name in names]
  found = [file for file in files if os.path.isfile(file)]
  if not found:
    raise ExtractionError(
      f"{path!r} is no SavedModel: it has neither {names[0]} nor {names[1]}"
    )
  content = saved_model_pb2.SavedModel()
  proto_file.read(found[0], content, proto_file.SAVED_MODEL)
  for meta_graph in content.meta_graphs if not allow_side_effects else ():
    finding = side_effects.when_loaded(meta_graph.graph_def)
    side_effects.refuse(finding, f"SavedModel {path!r}")
  del content  # TensorFlow parses it again
  try:
    return tf.saved_model.load(path)
  except Exception as error:
    raise ExtractionError(
      f"SavedModel {path!r} cannot be loaded: {type(error).__name__}:"
      f" {(str(error).strip() or 'no message').splitlines()[0]}"
    ) from error


def _signature(loaded: Any, path: str, key: str | None) -> Any:
  signatures = dict(getattr(loaded, "signatures", {}))
  if key is None and len(signatures) == 1:
    return next(iter(signatures.values()))
  wanted = DEFAULT_SIGNATURE if key is None else key
  if wanted not in signatures:
    known = ", ".join(map(repr, sorted(signatures))) or "none"
    raise ExtractionError(
      f"SavedModel {path!r} has no signature {wanted!r}; it has {known}"
    )
  return signatures[wanted]

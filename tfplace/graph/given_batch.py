"""Batch of a step that the user describes by shapes or by a file of arrays."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class GivenBatch:
  """Batch for a Keras model that does not say the shapes of its inputs.

  Attributes:
    input_shapes: shape with the batch size by input name; "" names the only
      input. Empty if a file is given.
    path: an .npz file: arrays "x", "y" and "sample_weight", where the inputs
      or outputs of a model may stand under their own names instead. "" for
      none.
  """

  input_shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(
    default_factory=dict
  )
  path: str = ""

"""The exceptions of tfplace: what went wrong, with the op, device and bytes.

Every error that a caller can cause or act on derives from `TfplaceError`; its
message is one sentence that names the thing and its value.
"""

import reprlib
from typing import Any

MOST_SHOWN = 120  # characters of one value in a message


def shown(value: Any, most: int = MOST_SHOWN) -> str:
  """A value as a message shows it: its repr, about `most` characters."""
  if isinstance(value, str) and len(value) < most - 2:
    return repr(value)
  short = reprlib.Repr()
  short.maxstring = short.maxother = short.maxlong = most
  short.maxlist = short.maxdict = short.maxtuple = most // 4
  try:
    text = short.repr(value)
  except ValueError:  # Python converts at most 4,300 digits.
    text = f"a {type(value).__name__} of many digits"
  return text if len(text) <= most else text[: most - 3] + "..."


class TfplaceError(Exception):
  """Base of every error that tfplace raises on purpose.

  Attributes:
    op: name of the op that the error speaks of, or None.
    device: name of the device, or None.
    num_bytes: bytes that the error speaks of (say, missing), or None.
  """

  def __init__(
    self,
    message: str,
    *,
    op: str | None = None,
    device: str | None = None,
    num_bytes: float | None = None,
  ) -> None:
    super().__init__(message)
    self.op = op
    self.device = device
    self.num_bytes = num_bytes


class FormatError(TfplaceError):
  """A file or value that breaks the interchange formats."""


class ProblemError(TfplaceError):
  """A graph and a cluster that do not go together."""


class PlacementError(TfplaceError):
  """A placement that a problem does not allow."""


class InfeasibleError(TfplaceError):
  """No placement fits in memory, or none that was found.

  Attributes:
    op: where one op or its colocation group is proven to fit nowhere, that op.
    device: the device that lacks the most memory: of the nearest placement
      that was found, or for `op`. None where nothing could be run, and where
      several devices are proven to lack memory together.
    num_bytes: what that device lacks, or those together.
    evaluation: the `Evaluation` of the nearest placement that was found, the
      one with the fewest bytes too many on all devices together; None where it
      is a proof.
  """

  def __init__(
    self,
    message: str,
    *,
    op: str | None = None,
    device: str | None = None,
    num_bytes: float | None = None,
    evaluation: Any = None,
  ) -> None:
    super().__init__(message, op=op, device=device, num_bytes=num_bytes)
    self.evaluation = evaluation


class ExtractionError(TfplaceError):
  """A model or graph that cannot be turned into an `OpGraph`."""


class MeasurementError(TfplaceError):
  """A placement that could not be run or timed on real devices."""


class ApplyError(TfplaceError):
  """A placement that cannot be applied to a model."""


class TrainingError(TfplaceError):
  """A training run that cannot start or go on."""

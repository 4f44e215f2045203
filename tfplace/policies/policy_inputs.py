"""What the inputs of every policy have in common."""

import dataclasses

import numpy as np


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

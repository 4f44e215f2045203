"""Draws placements from a policy's logits. NumPy only."""

from collections.abc import Sequence

import numpy as np


def sample(
  logits: np.ndarray,
  number: int,
  rng: np.random.Generator,
  clusterings: Sequence[np.ndarray] = (),
) -> np.ndarray:
  """[number, N] int32 draws from [N, D] logits, by the Gumbel trick.

  NumPy draws them, so that a seed and a number of iterations say all there is
  to say about the state of randomness.

  Args:
    logits: of each decision.
    number: of placements.
    rng: draws the noise.
    clusterings: [N] cluster of each decision, in one or several ways, which
      the placements take in turn. Decisions of one cluster get the same noise:
      alike, they move together, yet each one's distribution is what the policy
      says. Without it, a sample of 10,000 decisions is a placement with
      hundreds of its ops torn out of their surroundings.
  """
  count, devices = logits.shape
  result = np.empty((number, count), np.int32)
  for row in range(number):
    of = clusterings[row % len(clusterings)] if clusterings else None
    size = count if of is None else int(of.max(initial=0)) + 1
    noise = rng.gumbel(size=(size, devices)).astype(np.float32)
    if of is not None:
      noise = noise[of]
    result[row] = (logits + noise).argmax(axis=-1)
  return result

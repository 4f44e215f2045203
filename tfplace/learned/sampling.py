"""Draws placements from a policy's logits. NumPy only."""

from collections.abc import Iterator, Sequence

import numpy as np

# Of the draws of the placer `gdp`, half each. A policy is sure of itself where
# it is wrong, too: on graphs unlike all that it knows. Hot draws follow it
# only where it is very sure. (To the recurrent policies, whose entropy was
# kept up in training, it makes no difference.)
TEMPERATURES = (1.0, 5.0)


def sample(
  logits: np.ndarray,
  number: int,
  rng: np.random.Generator,
  clusterings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> np.ndarray:
  """[number, N] int32 draws from [N, D] logits, by the Gumbel trick.

  NumPy draws them, so that a seed and a number of iterations say all there is
  to say about the state of randomness.

  Args:
    logits: of each decision.
    number: of placements.
    rng: draws the noise.
    clusterings: see `shared_noise`. Without it, a sample of 10,000 decisions
      is a placement with hundreds of its ops torn out of their surroundings.
    temperatures: see `shared_noise`.
  """
  count, devices = logits.shape
  noise = shared_noise(rng, number, count, devices, clusterings, temperatures)
  result = np.empty((number, count), np.int32)
  for row, mine in zip(result, noise, strict=True):
    row[:] = (logits + mine).argmax(axis=-1)
  return result


def shared_noise(
  rng: np.random.Generator,
  number: int,
  count: int,
  devices: int,
  clusterings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> Iterator[np.ndarray]:
  """`number` times [count, devices] float32 Gumbel noise.

  Args:
    rng: draws it.
    number: of placements.
    count: decisions of a placement, N.
    devices: of a decision.
    clusterings: [N] cluster of each decision, in one or several ways, which
      the placements take in turn. Decisions of one cluster get the same noise:
      alike, they move together, yet each one's distribution is what the policy
      says.
    temperatures: of equal shares of the placements, one after the other. Above
      1 draws are nearer to even odds: what is added to logits grows, as if the
      logits were divided.
  """
  for row in range(number):
    of = clusterings[row % len(clusterings)] if clusterings else None
    size = count if of is None else int(of.max(initial=0)) + 1
    noise = rng.gumbel(size=(size, devices)).astype(np.float32)
    noise *= np.float32(temperatures[row * len(temperatures) // number])
    yield noise if of is None else noise[of]


def decoding_noise(
  rng: np.random.Generator,
  samples: int,
  steps: int,
  devices: int,
  clusterings: Sequence[np.ndarray] = (),
) -> np.ndarray:
  """[1 + samples, steps, devices] float32 for a policy that decodes in steps.

  The first row is zeros, for the most probable placement; the others are
  `shared_noise`, for samples.
  """
  noise = np.zeros((samples + 1, steps, devices), np.float32)
  for row, mine in zip(
    noise[1:],
    shared_noise(rng, samples, steps, devices, clusterings),
    strict=True,
  ):
    row[:] = mine
  return noise


def greedy_and_samples(
  logits: np.ndarray, samples: int, rng: np.random.Generator
) -> np.ndarray:
  """[1 + samples, N] int32: the most probable choices, then draws.

  Draws by inversion: one random number per decision, where `sample` takes one
  per decision and choice. For many choices.
  """
  count, choices = logits.shape
  weight = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
  bound = np.cumsum(weight, axis=1)
  bound /= bound[:, -1:]
  row = np.arange(count)
  # Rows end to end, each one above the last: sorted, so one search does.
  edges = (bound + row[:, None]).ravel()
  result = np.empty((samples + 1, count), np.int64)
  result[0] = logits.argmax(axis=1)
  for draw in result[1:]:
    at = np.searchsorted(edges, rng.random(count) + row, side="right")
    draw[:] = np.minimum(at - row * choices, choices - 1)
  return result.astype(np.int32)

"""Memory: fits that are hard to find."""

import numpy as np
import pytest

from tests.testing import problems
from tfplace.bounds import check_memory
from tfplace.errors import InfeasibleError
from tfplace.graph import Problem
from tfplace.placers import place

SLACK = 20.0  # bytes on all devices together
# Sizes of 30 ops, of which the devices' memories are the sums of random parts.
SIZES = {
  "all alike": lambda rng: np.full(30, 100.0),
  "one size class": lambda rng: rng.integers(900, 1100, 30).astype(float),
  "a few large ones": lambda rng: np.concatenate(
    (rng.integers(4000, 9000, 4), rng.integers(50, 900, 26))
  ).astype(float),
  "subset sums": lambda rng: rng.integers(10_000, 20_000, 30).astype(float),
}


def packed_problem(name, seed, devices=4):
  """A perfect packing exists, with `SLACK` spread evenly."""
  rng = np.random.default_rng(seed)
  sizes = SIZES[name](rng)
  part = rng.permutation(np.arange(len(sizes)) % devices)
  memory = np.bincount(part, sizes, devices) + SLACK / devices
  edges = [(i, i + 1) for i in range(len(sizes) - 1) if rng.random() < 0.5]
  return Problem(
    problems.graph([1.0] * len(sizes), edges, persistent_bytes=list(sizes)),
    problems.cluster(list(memory)),
  )


@pytest.mark.parametrize("strategy", ["auto", "annealing"])
@pytest.mark.parametrize("name", SIZES)
def test_a_fit_is_found_however_tight(name, strategy):
  problem = packed_problem(name, 0)
  result = place(problem, strategy, budget_s=60, max_evaluations=300)
  assert result.evaluation.feasible


def test_packing_ends_when_its_time_is_over():
  # No packing: 6 of size 10 for three devices of 15, 15 and 30 bytes.
  problem = Problem(
    problems.graph([1.0] * 6, [], persistent_bytes=[10.0] * 6),
    problems.cluster([15.0, 15.0, 30.0]),
  )
  check_memory(problem)  # sums do not tell
  with pytest.raises(InfeasibleError, match="5 bytes too few") as caught:
    place(problem, "annealing", budget_s=1.5)
  assert caught.value.num_bytes >= 5.0

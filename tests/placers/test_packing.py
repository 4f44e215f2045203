"""Memory: fits that are hard to find, and what is said where there is none."""

import numpy as np
import pytest

from tests.testing import problems
from tfplace.bounds import check_memory
from tfplace.core import Problem
from tfplace.errors import InfeasibleError
from tfplace.placers import place
from tfplace.simulate import Simulator

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


@pytest.mark.parametrize("seed", range(15))
def test_what_is_proven_to_fit_nowhere_fits_nowhere(seed):
  problem = memories_of_all_sizes(seed)
  batch = Simulator(problem).run(every_placement(problem))
  runs = np.isfinite(batch.step_time_us)
  memory = problem.cluster.memory_bytes
  over = np.maximum(batch.peak_memory_bytes - memory, 0.0)
  try:
    check_memory(problem)
  except InfeasibleError as error:
    assert not batch.feasible.any()
    # So many bytes are lacking at least, whatever the placement.
    assert 0 < error.num_bytes <= over[runs].sum(axis=1).min() + 1e-6


def every_placement(problem):
  rows = np.array(
    np.meshgrid(*map(np.flatnonzero, problem.group_allowed))
  ).reshape(problem.num_groups, -1)
  return np.ascontiguousarray(rows.T[:, problem.group_of], np.int32)


def memories_of_all_sizes(seed):
  """`small_problem` with memories from far too small to ample."""
  problem = problems.small_problem(seed)
  rng = np.random.default_rng(seed)
  total = float(problem.graph.persistent_bytes.sum())
  count = problem.cluster.num_devices
  memories = rng.uniform(0.1, 2.0, count) * total / count + 5.0
  kinds = [device.kind for device in problem.cluster.devices]
  return Problem(problem.graph, problems.cluster(list(memories), kinds))


@pytest.mark.parametrize(
  ("fields", "wanted"),
  [
    # While o1 runs: its input of 7, its output of 11, temporary 13, its own 3.
    ({}, 7 + 11 + 13 + 3),
    # Colocated, what o0 holds for the whole step as well.
    ({"colocation": ["a", "a"]}, 7 + 11 + 13 + 3 + 2),
  ],
)
def test_what_one_op_holds_at_once_by_hand(fields, wanted):
  graph = problems.graph(
    [1.0, 1.0],
    [(0, 1)],
    output_bytes=[(7.0,), (11.0,)],
    temp_bytes=[0.0, 13.0],
    persistent_bytes=[2.0, 3.0],
    **fields,
  )
  check_memory(Problem(graph, problems.cluster([wanted, 10.0])))
  with pytest.raises(InfeasibleError, match=r"has .*, 1 byte too") as caught:
    check_memory(Problem(graph, problems.cluster([wanted - 1.0, 10.0])))
  assert (caught.value.device, caught.value.num_bytes) == ("d0", 1.0)

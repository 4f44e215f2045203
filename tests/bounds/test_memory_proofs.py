"""Proofs that a problem does not fit into memory."""

import numpy as np
import pytest

from tests.testing import exact, problems
from tfplace.bounds import check_memory
from tfplace.errors import InfeasibleError
from tfplace.graph import Problem
from tfplace.simulate import Simulator


@pytest.mark.parametrize("seed", range(15))
def test_what_is_proven_to_fit_nowhere_fits_nowhere(seed):
  problem = memories_of_all_sizes(seed)
  batch = Simulator(problem).run(exact.all_placements(problem))
  memory = problem.cluster.memory_bytes
  over = np.maximum(batch.peak_memory_bytes - memory, 0.0)
  try:
    check_memory(problem)
  except InfeasibleError as error:
    assert not batch.feasible.any()
    # So many bytes are lacking at least, whatever the placement.
    assert 0 < error.num_bytes <= over.sum(axis=1).min() + 1e-6


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

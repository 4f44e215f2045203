"""A renumbered graph that is told its ops' positions simulates as before."""

import numpy as np
import pytest

from tests.testing.random_problems import costly_case, random_case
from tfplace.graph.graph_edits import subgraph
from tfplace.graph.problem import Problem
from tfplace.simulate import engine


def run(problem, devices, position=None):
  """Step time, starts, peaks, bytes moved; infinity where it cannot run."""
  tables = engine.pack(problem, position)
  work = engine.workspace(tables)
  found = engine.simulate_one(tables, devices, work)
  starts = work.nodes["time"][: tables.num_ops]
  peak_bytes, moved_bytes = found.peak_memory_bytes[0], found.bytes_moved[0]
  return found.step_time_us[0], starts, peak_bytes, moved_bytes


@pytest.mark.parametrize("part", range(2))
def test_any_order_of_the_ops_gives_the_very_same_times(part):
  for seed in range(200 * part, 200 * (part + 1)):
    rng = np.random.default_rng(seed)
    make = costly_case if seed % 2 else random_case
    problem, placement = make(rng)
    order = rng.permutation(problem.graph.num_ops)
    other = Problem(subgraph(problem.graph, order), problem.cluster)
    devices = np.asarray(placement, np.int32)
    expected = run(problem, devices)
    found = run(other, np.ascontiguousarray(devices[order]), order)
    assert found[0] == expected[0], seed
    if np.isfinite(expected[0]):
      np.testing.assert_array_equal(found[1], expected[1][order])
      # Fractions of bytes are added in another order; whole ones are exact.
      np.testing.assert_allclose(found[2], expected[2], rtol=1e-12)
      np.testing.assert_allclose(found[3], expected[3], rtol=1e-12)

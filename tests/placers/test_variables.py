"""Variables sit with their first readers where no rule decides."""

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import OpSpec, Problem, build_graph
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph

LAYERS = 8


def step(names, memory=np.inf):
  """A chain of layers of 10 us; reads and updates of variables take 0.1 us.

  All variables come first in the file, and each is read by one layer.
  """
  ops, edges = [], []
  for i in range(LAYERS):
    group = {"colocation": f"v{i}"}
    name = names.format(i)
    ops += [
      OpSpec(f"{name}", "VarHandleOp", {"GPU": 0.0}, [0.0], 40.0, **group),
      OpSpec(f"{name}/Read", "ReadVariableOp", {"GPU": 0.1}, [40.0], **group),
      OpSpec(
        f"{name}/Update", "AssignSubVariableOp", {"GPU": 0.1}, [], **group
      ),
    ]
    edges += [(3 * i, 0, 3 * i + 1), (3 * i, 0, 3 * i + 2)]
  for i in range(LAYERS):
    op = len(ops)
    ops.append(OpSpec(f"multiply{i}", "MatMul", {"GPU": 10.0}, [4.0]))
    edges += [(3 * i + 1, 0, op), (op, 0, 3 * i + 2)]
    if i:
      edges.append((op - 1, 0, op))
  graph = build_graph("chain", ops, edges)
  return Problem(graph, problems.cluster([memory] * 2, bandwidth=1e3))


@pytest.mark.parametrize("strategy", ["blocks", "expert", "m_topo"])
def test_variables_sit_with_their_first_readers(strategy):
  result = place(step("w{}"), strategy)
  devices = result.placement.devices
  assert (devices[: 3 * LAYERS : 3] == devices[3 * LAYERS :]).all()
  assert devices[3 * LAYERS :].tolist() == [0] * 4 + [1] * 4


def test_memory_limits_what_follows_a_reader():
  # The layers of each device hold 160 bytes; the first has 130, the other 400.
  problem = step("w{}")
  cluster = problems.cluster([130.0, 400.0])
  groups = GroupGraph(Problem(problem.graph, cluster))
  devices = np.array([1] * LAYERS + [0] * 4 + [1] * 4, np.int32)
  moved = groups.beside_readers(devices)
  assert moved.tolist() == [0, 0, 0, 1, *[1] * 4, *[0] * 4, *[1] * 4]


def test_groups_that_compute_do_not_follow():
  graph = problems.graph(
    [0.0, 5.0, 5.0],
    [(0, 1), (1, 2)],
    persistent_bytes=[8.0, 0.0, 0.0],
    colocation=["a", "a", None],
  )
  groups = GroupGraph(Problem(graph, problems.cluster([np.inf] * 2)))
  assert groups.first_readers.tolist() == [-1, -1]

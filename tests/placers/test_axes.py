import itertools

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import OpSpec, Problem, build_graph
from tfplace.core.op_names import UNKNOWN
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.rules.axes import read_scopes, splits


def problem_of(names, edges, num_devices=2, times=None):
  """Ops of 1 us that send 4 bytes; edges by name."""
  ops = [
    OpSpec(name, "Op", {"GPU": (times or {}).get(name, 1.0)}, (4.0,))
    for name in names
  ]
  at = {name: i for i, name in enumerate(names)}
  graph = build_graph("g", ops, [(at[a], 0, at[b]) for a, b in edges])
  return Problem(graph, problems.cluster([np.inf] * num_devices))


def segments(count):
  """Independent segments of two layers, each forward and back."""
  names, edges = [], []
  for i in range(count):
    forward = [f"m/segment_{i}/layer_{j}/MatMul" for j in range(2)]
    back = [f"gradient_tape/{name}/MatMul_1" for name in reversed(forward)]
    names += forward + back
    edges += itertools.pairwise(forward + back)
  return names, edges


def test_a_scope_is_that_of_the_op_and_of_its_gradient():
  names = ["m/step_3/lstm_1/MatMul", "gradient_tape/m/step_3/lstm_1/MatMul/Sum"]
  scopes = read_scopes(GroupGraph(problem_of(names, [])))
  path = (("m", UNKNOWN), ("step", 3), ("lstm", 1))
  assert [scopes.paths[scope] for scope in scopes.of] == [path, path]
  assert scopes.of[0] == scopes.of[1]


def test_splits_of_one_axis_by_hand():
  axis = np.array([0, 1, 2, 3, UNKNOWN])
  found = [part.tolist() for part in splits([axis], 2)]
  assert found == [[0, 0, 1, 1, UNKNOWN], [0, 1, 0, 1, UNKNOWN]]


def test_two_axes_make_a_grid_or_share_what_one_leaves():
  outer = np.array([0, 0, 1, 1, UNKNOWN])
  inner = np.array([0, 1, 0, 1, 1])
  found = [part.tolist() for part in splits([outer, inner], 4)]
  assert [0, 1, 2, 3, UNKNOWN] in found  # outer's halves, each split by inner
  assert [0, 0, 2, 2, 2] in found  # outer in blocks of four, inner for the rest


@pytest.mark.parametrize("num_devices", [2, 4])
def test_independent_segments_get_devices_of_their_own(num_devices):
  names, edges = segments(4)
  problem = problem_of(names, edges, num_devices)
  result = place(problem, "axes", budget_s=5)
  # 16 us of work, nothing sent; along the layers it would wait for transfers.
  assert result.evaluation.step_time_us == 16 / num_devices
  assert result.evaluation.bytes_moved == 0


def test_a_model_without_numbers_stays_on_one_device():
  names = ["m/a/MatMul", "m/b/MatMul", "m/c/MatMul"]
  problem = problem_of(names, list(itertools.pairwise(names)))
  result = place(problem, "axes", budget_s=5)
  assert len(set(result.placement.devices.tolist())) == 1

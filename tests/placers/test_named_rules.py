"""Rules that read names: experts' and splits along axes."""

import itertools

import numpy as np
import pytest

from tests.testing import problems
from tfplace.graph import OpSpec, Problem, build_graph
from tfplace.graph.op_names import UNKNOWN
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


def expert(*step):
  problem = problem_of(*step)
  devices = place(problem, "expert", budget_s=5).placement.devices
  return dict(zip(step[0], devices.tolist(), strict=True))


NMT = [
  "nmt/encoder_embedding/Gather",
  "nmt/encode_0/encoder_layer_0/MatMul",
  "nmt/encode_0/encoder_layer_1/MatMul",
  "nmt/decode_0/decoder_layer_0/MatMul",
  "nmt/decode_0/attention/MatMul",
  "nmt/decode_0/decoder_layer_1/MatMul",
  "nmt/decode_0/softmax/MatMul",
  "gradient_tape/nmt/decode_0/softmax/MatMul",
  "gradient_tape/nmt/encode_0/encoder_layer_1/MatMul",
]
NMT_EDGES = list(itertools.pairwise(NMT))


def test_nmt_layers_share_devices_by_depth():
  on_two = expert(NMT, NMT_EDGES, 2)
  assert list(on_two.values()) == [0, 0, 1, 0, 1, 1, 1, 1, 1]
  # Attention and softmax have a spare device.
  on_three = expert(NMT, NMT_EDGES, 3)
  assert list(on_three.values()) == [0, 0, 1, 0, 2, 1, 2, 2, 1]


def test_inception_is_cut_between_cells_only():
  # Two branches of a cell that the topological order interleaves; each cell
  # is half of the work.
  names, edges = ["net/input/Relu"], []
  before = names[0]
  for cell in range(2):
    branches = [f"net/conv{2 * cell + i}/Conv2D" for i in range(2)]
    concat = f"net/mixed{cell}/concat"
    names += [*branches, concat]
    edges += [(before, branch) for branch in branches]
    edges += [(branch, concat) for branch in branches]
    before = concat
  names.append("gradient_tape/net/conv0/Conv2DBackpropFilter")
  edges.append((before, names[-1]))
  times = {name: 10.0 for name in names if "Conv2D" in name}
  at = expert(names, edges, 2, times)
  assert at["net/conv0/Conv2D"] == at["net/conv1/Conv2D"] == 0
  assert at["net/conv2/Conv2D"] == at["net/conv3/Conv2D"] == 1
  assert at["gradient_tape/net/conv0/Conv2DBackpropFilter"] == 0


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

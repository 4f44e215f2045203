import itertools

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import OpSpec, Problem, build_graph
from tfplace.placers import place


def expert(names, edges, num_devices, times=None, colocation=None):
  ops = [
    OpSpec(
      name,
      "Op",
      {"GPU": (times or {}).get(name, 1.0)},
      output_bytes=(4.0,),
      colocation=(colocation or {}).get(name),
    )
    for name in names
  ]
  at = {name: i for i, name in enumerate(names)}
  graph = build_graph("g", ops, [(at[a], 0, at[b]) for a, b in edges])
  problem = Problem(graph, problems.cluster([np.inf] * num_devices))
  devices = place(problem, "expert", budget_s=5).placement.devices
  return dict(zip(names, devices.tolist(), strict=True))


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


def test_nmt_layers_share_devices_by_depth_on_two():
  at = expert(NMT, NMT_EDGES, 2)
  assert at["nmt/encoder_embedding/Gather"] == 0
  assert at["nmt/encode_0/encoder_layer_0/MatMul"] == 0
  assert at["nmt/decode_0/decoder_layer_0/MatMul"] == 0
  assert at["nmt/encode_0/encoder_layer_1/MatMul"] == 1
  assert at["nmt/decode_0/attention/MatMul"] == 1
  assert at["nmt/decode_0/softmax/MatMul"] == 1
  assert at["gradient_tape/nmt/decode_0/softmax/MatMul"] == 1
  assert at["gradient_tape/nmt/encode_0/encoder_layer_1/MatMul"] == 1


def test_nmt_attention_and_softmax_have_a_spare_device():
  at = expert(NMT, NMT_EDGES, 3)
  assert at["nmt/encode_0/encoder_layer_0/MatMul"] == 0
  assert at["nmt/encode_0/encoder_layer_1/MatMul"] == 1
  assert at["nmt/decode_0/attention/MatMul"] == 2
  assert at["nmt/decode_0/softmax/MatMul"] == 2


def language_model(layer, num_layers):
  """A step's names and edges; the sum of a layer's gradients has no scope."""
  forward = [f"lm/step_0/{layer}_{i}/MatMul" for i in range(num_layers)]
  names = ["lm/embedding/Gather", *forward, "lm/step_0/softmax/MatMul"]
  back = [f"gradient_tape/{name}" for name in reversed(names)]
  sums = [f"AddN_{i}" for i in range(num_layers)]
  updates = [f"adam/Mul_{i}" for i in range(num_layers)]
  edges = list(itertools.pairwise([*names, *back]))
  for i, name in enumerate(forward):
    edges += [(f"gradient_tape/{name}", sums[i]), (sums[i], updates[i])]
  return [*names, *back, *sums, *updates], edges


@pytest.mark.parametrize("layer", ["lstm_layer", "transformer_layer"])
@pytest.mark.parametrize(
  ("num_layers", "num_devices", "blocks"),
  [
    (2, 2, [0, 1]),
    (4, 4, [0, 1, 2, 3]),
    (4, 2, [0, 0, 1, 1]),
    (8, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
    (2, 3, [0, 1]),  # the softmax has the third for itself
  ],
)
def test_language_models_have_contiguous_blocks_of_layers(
  layer, num_layers, num_devices, blocks
):
  at = expert(*language_model(layer, num_layers), num_devices)
  for i, block in enumerate(blocks):
    name = f"lm/step_0/{layer}_{i}/MatMul"
    assert at[name] == at[f"gradient_tape/{name}"] == block
    assert at[f"AddN_{i}"] == at[f"adam/Mul_{i}"] == block
  for of in ("", "gradient_tape/"):
    assert at[f"{of}lm/embedding/Gather"] == 0
    assert at[f"{of}lm/step_0/softmax/MatMul"] == num_devices - 1


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


def test_optimizer_ops_follow_their_variable():
  names = [
    "net/a/MatMul",
    "net/b/MatMul",
    "net/b/ReadVariableOp",
    "adam/AssignVariableOp",
    "adam/Mul",
  ]
  edges = [
    ("net/a/MatMul", "net/b/MatMul"),
    ("net/b/ReadVariableOp", "net/b/MatMul"),
    ("net/b/MatMul", "adam/Mul"),
    ("adam/Mul", "adam/AssignVariableOp"),
  ]
  at = expert(
    names,
    edges,
    2,
    colocation={
      "net/b/ReadVariableOp": "loc:@w",
      "adam/AssignVariableOp": "loc:@w",
    },
  )
  assert at["net/a/MatMul"] == 0
  for name in names[1:]:
    assert at[name] == 1


def test_graph_without_scopes_is_cut_along_its_order():
  names = ["a", "b", "c", "d"]
  at = expert(names, list(itertools.pairwise(names)), 2)
  assert list(at.values()) == [0, 0, 1, 1]

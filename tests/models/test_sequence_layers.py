"""The human expert knows the sequence models' layers by their op names."""

import re

import pytest

from tfplace import cost
from tfplace.graph import Problem
from tfplace.hardware.presets import cluster_preset
from tfplace.placers import place
from tfplace.plan.source import open_source

LAYERS = 3
TINY = {
  "gnmt": {"units": 16, "vocabulary": 50, "length": 2},
  "rnnlm": {"units": 16, "vocabulary": 50, "length": 2},
  "transformer_xl": {
    "units": 16,
    "heads": 2,
    "feed_forward": 24,
    "vocabulary": 50,
    "length": 3,
    "memory": 2,
    "segments": 2,
  },
}


@pytest.fixture(scope="module", params=sorted(TINY))
def placed(request):
  """A model of three layers, and the expert's GPU of each op, of three."""
  sizes = {"layers": LAYERS, **TINY[request.param]}
  cluster = cluster_preset(f"v100x{LAYERS}")
  traced = open_source(request.param, sizes=sizes).trace(batch_size=2)
  problem = Problem(cost.op_graph(traced, cluster), cluster)
  result = place(problem, "expert", budget_s=20)
  assert result.evaluation.feasible
  return problem.graph, result.placement.devices


def devices_of(placed, pattern):
  graph, devices = placed
  found = {
    int(device)
    for name, device in zip(graph.names, devices, strict=True)
    if re.search(pattern, name)
  }
  assert found, f"no op is named like {pattern}"
  return found


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("of", ["^(?!gradient_tape)", "^gradient_tape/"])
def test_each_layer_has_a_device_with_its_gradients(placed, layer, of):
  assert devices_of(placed, f"{of}.*_layer_{layer}[_/]") == {layer}
  beside = {0: "embedding", LAYERS - 1: "softmax/(MatMul|BiasAdd)"}
  if layer in beside:
    assert devices_of(placed, beside[layer]) == {layer}


def test_no_scope_is_numbered_apart_by_tensorflow(placed):
  """Op names lead to layer and step: no `step_1_1`, no `lstm_layer_0_1`."""
  graph, _ = placed
  apart = re.compile("(code|back|step|segment|layer)_[0-9]+_[0-9]+/")
  assert not [name for name in graph.names if apart.search(name)]

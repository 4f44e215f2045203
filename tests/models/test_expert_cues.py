"""The expert placer finds layers and cells by the names of the models' ops."""

import re

import pytest

from tests.testing.slow import SLOW
from tfplace import cluster_preset, models
from tfplace.core import Problem
from tfplace.placers import place
from tfplace.plan import sources

CASES = {
  "wavenet": (
    {"layers_per_stack": 2, "samples": 20, "channels": 4, "skip_channels": 8},
    r"stack_(\d+)_layer_(\d+)",
    4,
  ),
  "cifar10": (
    {"cells": 1, "filters": 4, "index": 7},
    r"/cell(\d+)_base_conv",
    2,
  ),
}


@SLOW
@pytest.mark.parametrize("name", CASES)
def test_layers_or_cells_are_whole_and_contiguous(name):
  """Their convolutions, that is; of a cell the one that reads the last cell.

  What reads an earlier cell only may go with the cell before. The costs are
  Grappler's, by which layers this small take about equal time.
  """
  sizes, pattern, parts = CASES[name]
  zoo = models.build(name, batch_size=2, **sizes)
  graph = sources.extract(zoo.model, "p100x2", batch_size=2, costs="grappler")
  problem = Problem(graph, cluster_preset("p100x2"))
  devices = place(problem, "expert", budget_s=5).placement.devices
  found: dict[tuple[int, ...], set[int]] = {}
  for op, device in zip(graph.names, devices.tolist(), strict=True):
    match = re.search(pattern, op)
    if match and re.search(r"convolution(_\d+)?$", op):
      key = tuple(int(number) for number in match.groups())
      found.setdefault(key, set()).add(device)
  assert len(found) == parts
  assert all(len(used) == 1 for used in found.values())
  in_order = [next(iter(found[key])) for key in sorted(found)]
  assert in_order == sorted(in_order)
  assert set(in_order) == {0, 1}

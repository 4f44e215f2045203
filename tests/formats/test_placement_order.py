"""A placement file may say in which order devices take their ops."""

import json

import numpy as np
import pytest

from tfplace import core, formats
from tfplace.errors import FormatError


def placement(order):
  graph = core.build_graph("g", [core.OpSpec("a", "X", {"CPU": 1.0})], [])
  cluster = core.Cluster("c", (core.Device("d", "CPU"),))
  problem = core.Problem(graph, cluster, order=order)
  return core.Placement(problem, np.zeros(1, np.int32))


@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_the_order_is_written_and_read(order, tmp_path):
  placed = placement(order)
  placed.save(tmp_path / "p.json")
  data = json.loads((tmp_path / "p.json").read_text())
  assert data.get("order") == (None if order == "arrival" else "rank")
  # The file decides, whatever the order of the problem that is given.
  for given in ("arrival", "rank"):
    problem = placed.problem.in_order(given)
    read = formats.load_placement(tmp_path / "p.json", problem)
    assert read.problem.order == order
    assert read.extra == {}


def test_an_unknown_order_is_refused_by_name(tmp_path):
  path = tmp_path / "p.json"
  placed = placement("rank")
  placed.save(path)
  for bad in ("fifo", None, 3, ["rank"]):
    data = {**json.loads(path.read_text()), "order": bad}
    (tmp_path / "bad.json").write_text(json.dumps(data))
    with pytest.raises(FormatError, match=r"bad.json.*order: .*arrival, rank"):
      formats.load_placement(tmp_path / "bad.json", placed.problem)
    with pytest.raises(FormatError, match=r"bad.json.*order: .*arrival, rank"):
      formats.load_assignments(tmp_path / "bad.json")

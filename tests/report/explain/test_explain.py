"""Explanations: shares of peak, JSON, tables."""

import json

import numpy as np
import pytest

from tests.testing import placed_graphs
from tests.testing.clusters import linked
from tfplace.graph.cluster import Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.report.explain import explain
from tfplace.report.explain.tables import explanation_tables


@pytest.mark.parametrize(
  "peaks, devices, shares, mean",
  [
    # (4 + 6) us at peak in a step of 20 us; other devices run nothing.
    ((4.0, 6.0), [0, 0], [0.5, None, None], 0.5),
    # 4 and 6 us in a step of 20 us, but for the transfer.
    ((4.0, 6.0), [0, 1], [0.2, 0.3, None], 0.25),
    # Kind Y has no peak.
    ((4.0, 6.0), [0, 2], [0.2, None, None], 0.2),
    ((None, None), [0, 2], [None, None, None], None),
  ],
)
def test_share_of_peak_by_hand(peaks, devices, shares, mean):
  us = {"X": 10.0, "Y": 10.0}
  ops = [
    OpSpec(x, "MatMul", us, [1.0], peak_us={} if peak is None else {"X": peak})
    for x, peak in zip("ab", peaks, strict=True)
  ]
  of_kinds = [Device(f"d{i}", kind) for i, kind in enumerate("XXY")]
  cluster = linked(of_kinds, 1e9)
  problem = Problem(build_graph("chain", ops, [(0, 0, 1)]), cluster)
  explanation = explain(Placement(problem, np.array(devices)))
  found = [device.share_of_peak for device in explanation.devices]
  assert found == [x if x is None else pytest.approx(x) for x in shares]
  assert explanation.share_of_peak == (mean and pytest.approx(mean))


def test_json_is_plain_and_complete():
  data = explain(placed_graphs.chain()).to_json()
  data = json.loads(json.dumps(data, allow_nan=False))
  assert data["format"] == "tfplace.explanation.v1"
  assert data["bottleneck"] == {"kind": "link", "name": "gpu:0 -> gpu:1"}
  assert [d["memory_bytes"] for d in data["devices"]] == [12.0, None]
  assert data["ratio_to_bound"] == pytest.approx(6.5 / 3)
  assert "microbatching" not in data and data["order"] == "arrival"
  assert "2.17 times the lower bound of 3 us" in data["summary"][0]


def test_tables_show_the_path_by_kind_of_time():
  # 2 + 1 of 9.5 us compute, 3 are sent, 3 are messages and 0.5 is latency.
  tables = {
    x.title: x for x in explanation_tables(explain(placed_graphs.messages()))
  }
  assert tables["Critical path by kind"].rows == [
    ("computation", "3 us", "32%"),
    ("communication", "3 us", "32%"),
    ("sends and receives of devices", "3 us", "32%"),
    ("latency and gaps of links", "0.5 us", "5.3%"),
  ]
  for table in tables.values():
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.to_rich().row_count == len(table.rows)

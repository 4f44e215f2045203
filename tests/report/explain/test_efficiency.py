"""Share of the data-sheet peak (MFU)."""

import numpy as np
import pytest

from tfplace.core import OpSpec, Placement, Problem, build_graph
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.report.explain import explain, summary
from tfplace.report.explain.output import explanation_to_json


def chain(peaks):
  """Two ops of 10 us one after the other, on devices of two kinds."""
  ops = [
    OpSpec("a", "MatMul", {"X": 10.0, "Y": 10.0}, [1.0], peak_us=peaks[0]),
    OpSpec("b", "MatMul", {"X": 10.0, "Y": 10.0}, [1.0], peak_us=peaks[1]),
  ]
  devices = tuple(
    Device(f"d{i}", kind, 1e9, 0.0) for i, kind in enumerate("XXY")
  )
  links = tuple(
    Link(a.name, b.name, 1e9, 0.0) for a in devices for b in devices if a != b
  )
  graph = build_graph("chain", ops, [(0, 0, 1)])
  return Problem(graph, Cluster("c", devices, links))


def test_share_is_time_at_peak_over_step_time():
  problem = chain([{"X": 4.0}, {"X": 6.0}])
  explanation = explain(Placement(problem, np.array([0, 0])))
  # (4 + 6) us at peak in a step of 20 us; the other devices run nothing.
  np.testing.assert_allclose(explanation.peak_shares, [0.5, np.nan, np.nan])
  assert explanation.utilization == pytest.approx(0.5)
  assert any("50% of the data-sheet peak" in x for x in summary(explanation))
  assert explanation_to_json(explanation)["share_of_peak"] == pytest.approx(0.5)


def test_share_is_the_mean_over_devices_in_use():
  problem = chain([{"X": 4.0}, {"X": 6.0}])
  explanation = explain(Placement(problem, np.array([0, 1])))
  # 4 us and 6 us on one device each: (0.2 + 0.3) / 2 but for the transfer.
  assert explanation.utilization == pytest.approx(0.25, rel=1e-6)


def test_summary_counts_the_devices_with_a_peak():
  problem = chain([{"X": 4.0}, {"X": 6.0}])
  for devices, told in (([0, 1], "its 2 devices"), ([0, 2], "the device that")):
    sentences = summary(explain(Placement(problem, np.array(devices))))
    assert any(f"peak of {told}" in sentence for sentence in sentences)


def test_share_is_unknown_without_peaks():
  problem = chain([{}, {}])
  explanation = explain(Placement(problem, np.array([0, 2])))
  assert explanation.utilization is None
  assert not any(
    "data-sheet peak" in sentence for sentence in summary(explanation)
  )

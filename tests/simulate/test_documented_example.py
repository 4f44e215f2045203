"""The example of docs/simulation.md is what the simulator computes."""

import json
import pathlib
import re

import numpy as np
import pytest

from tfplace.formats.cluster import cluster_from_json
from tfplace.formats.graph import graph_from_json
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "simulation.md"
TEXT = PAGE.read_text(encoding="utf-8")
FENCE = r"<!-- example: {} -->\n```json\n(.*?)^```$"
PLACEMENT = [0, 0, 1]


def example(name, **link_costs):
  """The JSON of one example; `link_costs` are added to its links."""
  found = re.search(FENCE.format(name), TEXT, re.MULTILINE | re.DOTALL)
  data = json.loads(found[1])
  for link in data.get("links", ()):
    link.update(link_costs)
  return data


def simulate(devices=PLACEMENT, **link_costs):
  problem = Problem(
    graph_from_json(example("graph")),
    cluster_from_json(example("cluster", **link_costs)),
  )
  return Simulator(problem).schedule(np.array(devices, np.int32))


def times(schedule):
  """Row of the table -> (start, end)."""
  names = schedule.placement.problem.graph.names
  ends = zip(schedule.op_start_us, schedule.op_end_us, strict=True)
  result = dict(zip(names, ends, strict=True))
  sent = schedule.transfers
  for i, op in enumerate(sent.src_op):
    row = f"{names[op]} to d{sent.dst[i]}"
    result[row] = (sent.start_us[i], sent.arrival_us[i])
  return result


def test_table_matches_the_simulator():
  rows = re.findall(r"^\| ([abc].*?) \| (\d+) \| (\d+) \|", TEXT, re.MULTILINE)
  documented = {name: (float(start), float(end)) for name, start, end in rows}
  assert documented == times(simulate())


def test_timeline_matches_the_simulator():
  drawn = {}
  for label in ("d0", "d0->d1", "d1"):
    line = re.search(rf"^{label:9}(.*)$", TEXT, re.MULTILINE)[1]
    for found in re.finditer(r"([a-c])\1*", line):
      drawn[label, found[1]] = found.span()
  schedule = simulate()
  ops, sent = times(schedule), schedule.transfers
  assert drawn == {
    ("d0", "a"): ops["a"],
    ("d0", "b"): ops["b"],
    ("d1", "c"): ops["c"],
    ("d0->d1", "a"): (sent.start_us[0], sent.sent_us[0]),
    ("d0->d1", "b"): (sent.start_us[1], sent.sent_us[1]),
  }


def test_sentences_below_the_table_match_the_simulator():
  schedule = simulate()
  assert schedule.step_time_us == 55.0
  assert schedule.peak_memory_bytes.tolist() == [32_000.0, 32_000.0]
  assert schedule.placement.problem.lower_bound_us == 25.0
  assert simulate([0, 0, 0]).step_time_us == 39.0


@pytest.mark.parametrize(
  ("device", "first", "last"), [(0, 12.0, 43.0), (1, 45.0, 55.0)]
)
def test_memory_peaks_when_the_page_says(device, first, last):
  curve = simulate().memory[device]
  at_peak = np.flatnonzero(curve.num_bytes == curve.num_bytes.max())
  assert curve.time_us[at_peak[0]] == first
  assert curve.time_us[at_peak[-1] + 1] == last


def test_endpoint_overhead_matches_the_simulator():
  schedule = simulate(send_us=2, recv_us=1)
  ops, sent = times(schedule), schedule.transfers
  assert ops["a"] == (0.0, 12.0)
  assert ops["b"] == (14.0, 36.0)
  assert ops["c"] == (53.0, 58.0)
  assert sent.arrival_us.tolist() == [45.0, 52.0]
  assert (sent.recv_end_us - sent.recv_start_us).tolist() == [1.0, 1.0]

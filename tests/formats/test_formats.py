"""The interchange formats: round trips, and refusals by name and position."""

import copy
import gzip
import json
import math

import numpy as np
import pytest

from tests.testing.json_files import CLUSTER, CPU, GPU, GRAPH
from tests.testing.packed_graphs import odd_graph
from tfplace import formats
from tfplace.errors import FormatError, PlacementError
from tfplace.formats.graph import graph_to_json
from tfplace.formats.packed_graph import pack_graph, unpack_graph
from tfplace.graph import Evaluation, OpSpec, Placement, Problem, build_graph
from tfplace.placers.replan import carried_over


def write(path, data):
  path.write_text(data if isinstance(data, str) else json.dumps(data))
  return path


def changed(data, *steps):
  """A copy of `data` with the value at steps[:-1] set to steps[-1]."""
  result = copy.deepcopy(data)
  *keys, last, value = steps
  at = result
  for key in keys:
    at = at[key]
  if value is None:
    del at[last]
  else:
    at[last] = value
  return result


def test_graph_round_trip_keeps_unknown_keys_and_defaults(tmp_path):
  data = changed(GRAPH, "ops", 0, "layer", "net/encoder/dense")
  data = changed(data, "ops", 1, "microbatch", 3)
  graph = formats.load_graph(write(tmp_path / "g.json", data))
  assert graph.layer_paths == ["net/encoder/dense", None]
  assert graph.microbatch.tolist() == [-1, 3]
  formats.save_graph(graph, tmp_path / "h.json.gz")
  again = json.loads(gzip.decompress((tmp_path / "h.json.gz").read_bytes()))
  assert again["owner"] == {"kept": [1, 2]}
  assert again["ops"][0] == data["ops"][0]
  assert again["ops"][1] == {
    **data["ops"][1],
    "persistent_bytes": 0,
    "temp_bytes": 0,
    "colocation": None,
  }
  assert again["edges"] == GRAPH["edges"]


GRAPH_ERRORS = {
  "missing op key": (("ops", 0, "time_us", None), "ops[0] 'a'", "time_us"),
  "missing name": (("name", None), "graph", "name"),
  "missing edges": (("edges", None), "graph", "edges"),
  "format": (("format", "v2"), "format", "'v2'"),
  "duplicate name": (("ops", 1, "name", "a"), "ops[1]", "duplicate name 'a'"),
  "unknown src": (("edges", 0, "src", "zz"), "edges[0]", "'zz'"),
  "unknown dst": (("edges", 1, "dst", "zz"), "edges[1]", "'zz'"),
  "output": (("edges", 0, "output", 2), "'a' -> 'b'", "output 2 of op 'a'"),
  "output below -1": (("edges", 0, "output", -2), "'a' -> 'b'", "output -2"),
  "cycle": (("edges", [{"src": "a", "dst": "a"}]), "cycle", "'a'"),
  "negative time": (
    ("ops", 0, "time_us", "GPU", -1),
    "time_us['GPU']",
    "-1 is negative",
  ),
  "text bytes": (("ops", 0, "temp_bytes", "9"), "temp_bytes", "'9'"),
  "negative bytes": (
    ("ops", 0, "output_bytes", 1, -4),
    "ops[0] 'a': output_bytes[1]",
    "-4",
  ),
  "peak not an object": (("ops", 0, "peak_us", []), "peak_us", "an object"),
  "ops not a list": (("ops", {"a": 1}), "ops", "expected an array"),
  "op not an object": (("ops", 0, "a"), "ops[0]", "expected an object"),
  "control character": (("ops", 1, "name", "b\n"), "ops[1]", "control"),
  "lone surrogate": (("ops", 1, "name", "\ud800"), "ops[1]", "control"),
  "empty name": (("ops", 1, "name", ""), "ops[1]", "expected a name"),
  "huge integer": (("ops", 0, "temp_bytes", 10**400), "temp_bytes", "finite"),
  "too large": (("ops", 0, "temp_bytes", 1e61), "temp_bytes", "1e+61 is more"),
  "layer": (("ops", 0, "layer", 3), "ops[0] 'a': layer", "3"),
  "microbatch": (("ops", 0, "microbatch", 0.5), "'a': microbatch", "0.5"),
  "microbatch -1": (("ops", 0, "microbatch", -1), "'a': microbatch", "-1"),
  "microbatches": (("ops", 0, "microbatch", 10**7), "'a': microbatch", "100"),
  "microbatch in int64": (
    ("ops", 0, "microbatch", 2**31),
    "'a': microbatch",
    "",
  ),
  "huge microbatch": (("ops", 0, "microbatch", 1e60), "'a': microbatch", ""),
}


@pytest.mark.parametrize("case", GRAPH_ERRORS)
def test_broken_graph_is_refused_by_file_element_and_value(tmp_path, case):
  steps, *words = GRAPH_ERRORS[case]
  path = write(tmp_path / "bad.json", changed(GRAPH, *steps))
  with pytest.raises(FormatError) as caught:
    formats.load_graph(path)
  for word in [str(path), *words]:
    assert word in str(caught.value)


TEXT_ERRORS = {
  "truncated": (json.dumps(GRAPH)[:200], "line 1, column"),
  "empty": ("", "line 1, column 1"),
  "not an object": ("[]", "expected a JSON object, found list"),
  "nan": (
    json.dumps(GRAPH).replace("12.5", "NaN"),
    "time_us['GPU']: nan is not finite",
  ),
  "infinite": (json.dumps(GRAPH).replace("12.5", "1e999"), "not finite"),
  "repeated key": ('{"format": 1, "format": 2}', "duplicate name 'format'"),
  "deep nesting": ("[" * 100_000, ""),
  "endless digits": ('{"format": ' + "9" * 5000 + "}", ""),
}


@pytest.mark.parametrize("case", TEXT_ERRORS)
def test_text_that_is_no_graph_is_refused_by_position(tmp_path, case):
  text, words = TEXT_ERRORS[case]
  path = write(tmp_path / "bad.json", text)
  with pytest.raises(FormatError) as caught:
    formats.load_graph(path)
  assert str(path) in str(caught.value)
  assert words in str(caught.value)


@pytest.mark.parametrize(
  "steps, words",
  [
    (("devices", []), "no devices"),
    (("devices", 1, "name", GPU), "duplicate device name"),
    (("devices", 0, "kind", None), "'kind'"),
    (("devices", 0, "memory_bytes", -1), "memory_bytes: -1 is negative"),
    (("links", 0, "dst", "mars"), "'mars'"),
    (("links", 0, "bandwidth_bytes_per_us", 0), "bandwidth_bytes_per_us is 0"),
    (("links", 1, "gap_us", -1), "links[1]: gap_us: -1"),
    (("links", 1, "send_us", -1), "links[1]: send_us: -1 is negative"),
    (("links", 0, "recv_us", math.nan), "links[0]: recv_us: nan is not finite"),
    (("links", 0, "recv_us", 1e61), "recv_us: 1e+61 is more than 1e+60"),
    (("links", 0, "recv_us", "1"), "recv_us: expected a number, found '1'"),
    (("links", 1, dict(CLUSTER["links"][0])), "duplicate link"),
  ],
)
def test_broken_cluster_is_refused_by_element_and_value(tmp_path, steps, words):
  path = write(tmp_path / "bad.json", changed(CLUSTER, *steps))
  with pytest.raises(FormatError) as caught:
    formats.load_cluster(path)
  assert str(path) in str(caught.value)
  assert words in str(caught.value)


@pytest.fixture
def problem(tmp_path):
  graph = formats.load_graph(write(tmp_path / "g.json", GRAPH))
  return Problem(
    graph, formats.load_cluster(write(tmp_path / "c.json", CLUSTER))
  )


PLACEMENT_ERRORS = {
  "missing op": ({"a": CPU}, PlacementError, "'b' has no assignment"),
  "unknown op": ({"a": CPU, "b": CPU, "c": CPU}, PlacementError, "'c'"),
  "unknown device": ({"a": CPU, "b": "moon"}, PlacementError, "'moon'"),
  "no kernel": ({"a": CPU, "b": GPU}, PlacementError, "cannot run"),
  "not a name": ({"a": CPU, "b": 3}, FormatError, "assignments['b']"),
}


@pytest.mark.parametrize("case", PLACEMENT_ERRORS)
def test_broken_placement_is_refused_by_op_and_device(problem, tmp_path, case):
  assignments, error, words = PLACEMENT_ERRORS[case]
  data = {
    "format": "tfplace.placement.v1",
    "graph": "tiny",
    "assignments": assignments,
  }
  path = write(tmp_path / "p.json", data)
  with pytest.raises(error) as caught:
    formats.load_placement(path, problem)
  assert str(path) in str(caught.value)
  assert words in str(caught.value)


def test_evaluation_round_trip_with_a_step_that_never_ended(tmp_path):
  evaluation = Evaluation(
    math.inf, False, {GPU: 5}, {GPU: 0.5}, 3, 1.25, "measured", {"error": "x"}
  )
  evaluation.save(tmp_path / "e.json")
  assert formats.load_evaluation(tmp_path / "e.json") == evaluation


@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_the_order_of_a_placement_is_that_of_its_file(problem, order, tmp_path):
  path = tmp_path / "p.json"
  formats.save_placement(
    Placement(problem.in_order(order), np.array([0, 1])), path
  )
  data = json.loads(path.read_text())
  assert data.get("order") == (None if order == "arrival" else "rank")
  for given in ("arrival", "rank"):  # Whatever order the given problem has.
    read = formats.load_placement(path, problem.in_order(given))
    assert read.problem.order == order
    assert read.extra == {}


def test_a_saved_placement_names_units_and_their_members(tmp_path):
  data = changed(GRAPH, "ops", 1, "members", ["c", "d"])
  graph = formats.load_graph(write(tmp_path / "g.json", data))
  cluster = formats.load_cluster(write(tmp_path / "c.json", CLUSTER))
  problem = Problem(graph, cluster)
  path = tmp_path / "p.json"
  Placement(problem, [0, 1]).save(path)
  saved = json.loads(path.read_text())
  assert saved["assignments"] == {"a": GPU, "b": CPU, "c": CPU, "d": CPU}
  assert formats.load_placement(path, problem).devices.tolist() == [0, 1]
  for names in ("ab", "acd"):  # Other systems name units or members.
    kept = {name: saved["assignments"][name] for name in names}
    write(path, {**saved, "assignments": kept})
    assert formats.load_placement(path, problem).devices.tolist() == [0, 1]
  # A search starts where the placement was, also in units.
  Placement(problem, [0, 1]).save(path)
  starts = carried_over(problem, formats.load_assignments(path))
  assert starts.tolist() == [[0, 1]]


@pytest.mark.parametrize("order", ["fifo", None, 3, ["rank"]])
def test_an_unknown_order_is_refused_by_name(problem, order, tmp_path):
  path = tmp_path / "p.json"
  formats.save_placement(Placement(problem, np.array([0, 1])), path)
  write(path, {**json.loads(path.read_text()), "order": order})
  for load in (
    lambda: formats.load_placement(path, problem),
    lambda: formats.load_assignments(path),
  ):
    with pytest.raises(FormatError, match=r"p.json.*order: .*arrival, rank"):
      load()


@pytest.mark.parametrize(
  "graph",
  [
    odd_graph(),
    build_graph("nothing", [], []),
    build_graph("alone", [OpSpec("a", "X", {})], []),
  ],
  ids=lambda graph: graph.name,
)
def test_a_packed_graph_comes_back_as_it_was(graph):
  again = unpack_graph(pack_graph(graph))
  assert graph_to_json(again) == graph_to_json(graph)
  assert list(again.time_us) == list(graph.time_us)
  with pytest.raises(ValueError, match="read-only"):
    again.output_offsets[0] = 1


def test_every_truncation_and_every_flipped_byte_is_refused():
  content = pack_graph(odd_graph())
  for end in range(0, len(content), 7):
    with pytest.raises(FormatError):
      unpack_graph(content[:end])
  for at in range(0, len(content), 11):
    flipped = bytearray(content)
    flipped[at] ^= 1
    with pytest.raises(FormatError):
      unpack_graph(bytes(flipped))

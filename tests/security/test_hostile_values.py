"""Loaded values can be saved, simulated and shown; others are refused briefly.

Places of every format get values that JSON's parser lets pass and that could
not be added up or written again.
"""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.testing.json_files import CLUSTER, CPU, GPU, GRAPH
from tfplace import formats
from tfplace.errors import FormatError, PlacementError, TfplaceError, shown
from tfplace.formats import cluster as cluster_format
from tfplace.formats import graph as graph_format
from tfplace.formats import json_file
from tfplace.graph import Cluster, Evaluation, OpGraph, Placement, Problem
from tfplace.graph.argument_checks import MAX_SUMMAND
from tfplace.hardware.presets import cluster_preset
from tfplace.measure.local import host
from tfplace.measure.remote import workers
from tfplace.simulate import Simulator

PLACEMENT = {
  "format": "tfplace.placement.v1",
  "graph": "tiny",
  "assignments": {"a": GPU, "b": CPU},
}
EVALUATION = {
  "format": "tfplace.evaluation.v1",
  "step_time_us": 1,
  "feasible": True,
  "peak_memory_bytes": {GPU: 1},
  "busy_us": {GPU: 1},
  "bytes_moved": 1,
  "lower_bound_us": 1,
  "source": "simulated",
}
PROBLEM = Problem(
  graph_format.graph_from_json(GRAPH), cluster_format.cluster_from_json(CLUSTER)
)
LOADERS = {
  "graph": (GRAPH, formats.load_graph),
  "cluster": (CLUSTER, formats.load_cluster),
  "placement": (PLACEMENT, lambda path: formats.load_placement(path, PROBLEM)),
  "evaluation": (EVALUATION, formats.load_evaluation),
}


def set_at(data, steps, value):
  result = copy.deepcopy(data)
  at = result
  for step in steps[:-1]:
    at = at[step]
  at[steps[-1]] = value
  return result


def objects(data, steps=()):
  """The way to each object of a file, where an unknown key may stand."""
  if isinstance(data, dict):
    yield steps
    items = data.items()
  else:
    items = enumerate(data) if isinstance(data, list) else ()
  for key, value in items:
    # Objects that map names have no unknown keys.
    if key not in ("time_us", "assignments", "peak_memory_bytes", "busy_us"):
      yield from objects(value, (*steps, key))


def leaves(data, steps=()):
  """The way to each value that is neither object nor array."""
  if isinstance(data, dict | list):
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
      yield from leaves(value, (*steps, key))
  else:
    yield steps


PLACES = {
  kind: [*leaves(data), *((*way, "mine") for way in objects(data))]
  for kind, (data, _) in LOADERS.items()
}
NESTED = "deep"
for _ in range(json_file.MAX_DEPTH + 1):
  NESTED = [NESTED]
NOT_WRITABLE = {
  "NaN": math.nan,
  "infinity": math.inf,
  "minus infinity in a list": [{"x": [-math.inf]}],
  "lone surrogate": "\ud800",
  "lone surrogate as a key": {"x": {"\udfff": 1}},
  "nested": NESTED,
}


def dumped(folder, data):
  path = folder / "file.json"
  path.write_text(json.dumps(data))
  return path


@pytest.mark.parametrize("kind", LOADERS)
def test_under_an_unknown_key_only_what_can_be_saved_loads(tmp_path, kind):
  data, load = LOADERS[kind]
  for value in NOT_WRITABLE.values():
    path = dumped(tmp_path, {**data, "mine": value})
    with pytest.raises(FormatError, match="'mine'") as caught:
      load(path)
    assert str(path) in str(caught.value)
  with pytest.raises(FormatError, match="no Unicode text") as caught:
    load(dumped(tmp_path, {**data, "\ud800": 1}))
  caught.value.args[0].encode()  # what is printed


def save(loaded, path):
  savers = {
    OpGraph: formats.save_graph,
    Cluster: formats.save_cluster,
    Placement: formats.save_placement,
    Evaluation: formats.save_evaluation,
  }
  savers[type(loaded)](loaded, path)


HOSTILE = [
  *NOT_WRITABLE.values(),
  "x" * 1_000_000,
  ["x" * 1_000_000],
  {"x" * 1_000_000: 1},
  list(range(100_000)),
  1e308,
  5e-324,
  10**4000,
  -1,
  None,
  True,
]
TEXTS = st.text(st.characters(), max_size=8)  # surrogates, too
VALUES = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
  lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
  max_leaves=4,
)


def address_of(text):
  return host.resolve(workers.split_address(text)[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("hostile")


@settings(max_examples=600, deadline=None, derandomize=True)
@given(
  st.sampled_from([(kind, at) for kind in LOADERS for at in PLACES[kind]]),
  st.sampled_from(HOSTILE) | VALUES,
)
def test_any_value_anywhere_is_refused_in_short_or_can_be_used(
  folder, place, value
):
  check_refused_or_used(folder, *place, value)


def check_refused_or_used(folder, kind, steps, value):
  data, load = LOADERS[kind]
  path = dumped(folder, set_at(data, steps, value))
  try:
    loaded = load(path)
  except (FormatError, PlacementError) as error:
    assert str(path) in str(error)
    assert len(str(error)) < len(str(path)) + 500
    str(error).encode()
    return
  save(loaded, folder / "again.json")
  save(load(folder / "again.json"), folder / "more.json")
  texts = [(folder / f"{n}.json").read_bytes() for n in ("again", "more")]
  assert texts[0] == texts[1]
  if kind in ("graph", "cluster"):
    graph = loaded if kind == "graph" else PROBLEM.graph
    cluster = loaded if kind == "cluster" else PROBLEM.cluster
    check_finite(graph, cluster, folder)


def check_finite(graph, cluster, tmp_path):
  try:
    problem = Problem(graph, cluster)
    placement = Placement(problem, [0, 1])
  except TfplaceError:  # another kind of device
    return
  evaluation = Simulator(problem).evaluate([placement])[0]
  assert math.isfinite(evaluation.step_time_us)
  formats.save_evaluation(evaluation, tmp_path / "evaluation.json")
  assert formats.load_evaluation(tmp_path / "evaluation.json") == evaluation


def test_the_largest_numbers_that_load_add_up_to_finite_ones(tmp_path):
  most = MAX_SUMMAND
  large = {"output_bytes": [most], "persistent_bytes": most, "temp_bytes": most}
  large["time_us"] = {"GPU": most, "CPU": most}
  ops = [
    {**op, **large, "name": f"{op['name']}{i}"}
    for i in range(100)
    for op in GRAPH["ops"]
  ]
  edges = [{"src": f"a{i}", "dst": f"b{i}"} for i in range(100)]
  link = {"bandwidth_bytes_per_us": 1 / most, "latency_us": most}
  links = [{**each, **link, "gap_us": most} for each in CLUSTER["links"]]
  problem = Problem(
    formats.load_graph(dumped(tmp_path, {**GRAPH, "ops": ops, "edges": edges})),
    formats.load_cluster(dumped(tmp_path, {**CLUSTER, "links": links})),
  )
  placement = Placement(problem, [0, 1] * 100)
  evaluation = Simulator(problem).evaluate([placement])[0]
  # 100 transfers one after the other, of 1e60 / 1e-60 us each.
  assert evaluation.step_time_us == pytest.approx(100 * most**2)
  assert not evaluation.feasible


MEGABYTE = "x" * 1_000_000


@pytest.mark.parametrize(
  "value", [MEGABYTE, [MEGABYTE], {MEGABYTE: 1}, "'\ud800"], ids=range(4)
)
def test_a_value_is_shown_in_short_and_can_be_printed(value):
  assert len(shown(value)) <= 130
  shown(value).encode()


@pytest.mark.parametrize(
  "use, text",
  [
    *((cluster_preset, t) for t in (MEGABYTE, "\ud800", "p100x" + "9" * 5000)),
    *((address_of, f"{MEGABYTE}:1"), (address_of, "x." * 500_000 + ":1")),
    *((address_of, "a..b:1"), (address_of, "a\0b:1")),
    *((address_of, "[::::]:1"), (address_of, "localhost:99999")),
  ],
  ids=range(9),
)
def test_a_name_that_is_none_is_refused_in_short(use, text):
  with pytest.raises(TfplaceError) as caught:
    use(text)
  assert len(str(caught.value)) < 600

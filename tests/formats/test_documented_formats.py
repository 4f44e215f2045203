"""docs/formats.md describes what the loaders read and the savers write."""

import copy
import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

from tfplace import formats
from tfplace.errors import TfplaceError
from tfplace.formats import cluster as cluster_format
from tfplace.formats import codec, results
from tfplace.formats import graph as graph_format
from tfplace.graph import Cluster, Device, Evaluation, Link, OpSpec, Problem
from tfplace.graph.placement import Placement
from tfplace.learned import policies
from tfplace.measure.remote.workers import load_hosts
from tfplace.report.explain import explain

DOCS = pathlib.Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "formats.md").read_text(encoding="utf-8")
RULES = (DOCS / "simulation.md").read_text(encoding="utf-8")
TABLE = re.compile(r"<!-- fields: (.*?) -->\n\n((?:(?:-| ) .*\n)+)")
ROW = re.compile(r"((?:`\w+`, )*`\w+`) \((.*?), ([^,]*?)\): \S")
EXAMPLE = r"<!-- example: {} -->\n```json\n(.*?)^```$"
SAVED = ("graph", "cluster", "placement", "evaluation")
LOADED = (*SAVED, "hosts", "policy")
# Of formats whose page has no example, or has it elsewhere.
POLICY = {
  "format": "tfplace.policy.v1",
  "strategy": "gdp",
  "features": 1,
  "network": {"units": 64},
}


def keys(kind):
  return {field.name for field in dataclasses.fields(kind)} - {codec.EXTRA}


READ_KEYS = {  # what the loaders know; they keep or ignore all else
  "graph": graph_format._GRAPH_KEYS,
  "graph ops[]": keys(OpSpec),
  "graph edges[]": graph_format._EDGE_KEYS,
  "cluster": keys(Cluster) | {"format"},
  "cluster devices[]": keys(Device),
  "cluster links[]": keys(Link),
  "placement": results._PLACEMENT_KEYS,
  "evaluation": keys(Evaluation) | {"format"},
}


def documented():
  """List of fields -> field -> default, as the page has them."""
  tables = {}
  for name, rows in TABLE.findall(TEXT):
    fields = tables.setdefault(name, {})
    for row in rows.removeprefix("- ").split("\n- "):
      found = ROW.match(" ".join(row.split()))
      assert found, row
      for field in re.findall(r"`(\w+)`", found[1]):
        fields[field] = found[3]
  return tables


TABLES = documented()
CASES = [
  (table, field)
  for table, fields in TABLES.items()
  if table.split()[0] in LOADED
  for field in fields
]


def example(name):
  if name == "policy":
    return dict(POLICY)
  page = RULES if name in ("graph", "cluster") else TEXT
  found = re.search(EXAMPLE.format(name), page, re.MULTILINE | re.DOTALL)
  return json.loads(found[1])


def elements(data, table):
  """The objects of `data` that a table describes."""
  _, _, path = table.partition(" ")
  found = [data]
  for key in path.split(".") if path else ():
    found = [x for item in found for x in item[key.removesuffix("[]")]]
  return found


def load(name, data, folder):
  """Loads `data` as a file of that format."""
  path = folder / "policy.json"
  path.write_text(json.dumps(data))
  if name == "placement":
    graph = graph_format.graph_from_json(example("graph"))
    cluster = cluster_format.cluster_from_json(example("cluster"))
    return formats.load_placement(path, Problem(graph, cluster))
  if name == "policy":
    return policies.load_policy(folder)
  loaders = {
    "graph": formats.load_graph,
    "cluster": formats.load_cluster,
    "evaluation": formats.load_evaluation,
    "hosts": load_hosts,
  }
  return loaders[name](path)


def saved(name, loaded, folder):
  """Writes a loaded object as the package does."""
  path = folder / "saved.json"
  getattr(formats, f"save_{name}")(loaded, path)
  return json.loads(path.read_text())


@pytest.fixture(autouse=True)
def no_saved_model(monkeypatch):
  """Only the description of a policy is looked at, not its network."""
  monkeypatch.setattr(policies, "Policy", lambda path, info: info)


@pytest.mark.parametrize("name", SAVED)
def test_example_survives_a_round_trip(name, tmp_path):
  loaded = load(name, example(name), tmp_path)
  written = saved(name, loaded, tmp_path)
  again = saved(name, load(name, written, tmp_path), tmp_path)
  assert again == written


@pytest.mark.parametrize(("table", "field"), CASES)
def test_field_is_required_or_has_its_default(table, field, tmp_path):
  name, default = table.split()[0], TABLES[table][field]
  data = example(name)
  for element in elements(data, table):
    element.pop(field, None)
  if default == "required":
    with pytest.raises(TfplaceError, match=field):
      load(name, data, tmp_path)
    return
  without = load(name, data, tmp_path)
  if default.startswith("`") and name in SAVED:
    given = copy.deepcopy(data)
    for element in elements(given, table):
      element[field] = json.loads(default.strip("`"))
    expected = saved(name, load(name, given, tmp_path), tmp_path)
    assert saved(name, without, tmp_path) == expected


@pytest.mark.parametrize("table", READ_KEYS)
def test_fields_that_the_loader_knows_are_those_with_a_default(table):
  read = {f for f, default in TABLES[table].items() if default != "absent"}
  assert read == READ_KEYS[table]


@pytest.mark.parametrize("table", TABLES)
def test_example_and_saved_file_have_documented_keys_only(table, tmp_path):
  name = table.split()[0]
  files = [example(name)]
  if name in SAVED:
    files.append(saved(name, load(name, files[0], tmp_path), tmp_path))
  for data in files:
    for element in elements(data, table):
      assert set(element) <= set(TABLES[table])


def test_unknown_keys_survive_a_round_trip(tmp_path):
  for name in SAVED:
    loaded = load(name, {**example(name), "note": ["kept"]}, tmp_path)
    assert saved(name, loaded, tmp_path)["note"] == ["kept"]


def test_explanation_of_the_example_of_the_rules():
  problem = Problem(
    graph_format.graph_from_json(example("graph")),
    cluster_format.cluster_from_json(example("cluster")),
  )
  placement = Placement(problem, np.array([0, 0, 1], np.int32))
  data = explain(placement).to_json()
  # Ops a and c take 15 us, transfers of 30,000 and 2,000 bytes 32. The second
  # waits 8 us beyond the gap of 5, and the latency is 3.
  path = data["critical_path"]
  assert (path["compute_us"], path["transfer_us"]) == (15.0, 32.0)
  assert (path["queue_us"], path["idle_us"]) == (8.0, 8.0)
  assert data["bottleneck"] == {"kind": "link", "name": "d0 -> d1"}

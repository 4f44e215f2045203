"""Hosts files: what they say, and what is wrong with broken ones."""

import json

import pytest

from tfplace.errors import FormatError
from tfplace.measure.remote.workers import (
  is_hosts_file,
  load_hosts,
  split_address,
)

GOOD = {
  "format": "tfplace.hosts.v1",
  "name": "lab",
  "workers": [
    {"address": "10.0.0.1:2222", "name": "a", "kind": "old"},
    {"address": "b:1"},
  ],
}


def written(path, **changed):
  path.write_text(json.dumps({**GOOD, **changed}))
  return str(path)


def test_workers_have_addresses_and_names(tmp_path):
  hosts = load_hosts(written(tmp_path / "h.json"))
  assert hosts.name == "lab"
  assert [str(worker) for worker in hosts.workers] == [
    "worker 'a' at 10.0.0.1:2222",
    "worker b:1",
  ]
  assert hosts.workers[0].host == "10.0.0.1"
  assert [worker.kind for worker in hosts.workers] == ["old", ""]


@pytest.mark.parametrize(
  ("workers", "said"),
  [
    ([], "has 0 workers"),
    ([{"address": "a:1"}] * 2, r"workers\[1\]: address 'a:1' is there twice"),
    (
      [{"address": "a:1", "name": "x"}, {"address": "a:2", "name": "x"}],
      "name 'x' is there twice",
    ),
    ([{"name": "a"}], "missing required key 'address'"),
    ([{"address": "10.0.0.1"}], "'10.0.0.1' is not of the form host:port"),
    ([{"address": "a:0"}], "from 1 to 65535"),
    ([{"address": "a:65536"}], "from 1 to 65535"),
    ([{"address": "a:x"}], "'a:x' is not of the form"),
    ([{"address": "::1:22"}], "goes in brackets"),
    ([{"address": "a:1", "kind": 3}], "kind: expected a name, found 3"),
    ([{"address": 22}], "expected a name, found 22"),
    ("a:1", "expected an array"),
  ],
)
def test_broken_workers_are_named(tmp_path, workers, said):
  path = written(tmp_path / "h.json", workers=workers)
  with pytest.raises(FormatError, match=said) as info:
    load_hosts(path)
  assert str(info.value).startswith(path)


def test_ipv6_addresses_go_in_brackets():
  assert split_address("[::1]:2222") == ("::1", 2222)


def test_other_formats_are_no_hosts_file(tmp_path):
  assert is_hosts_file(written(tmp_path / "h.json"))
  other = written(tmp_path / "c.json", format="tfplace.cluster.v1")
  assert not is_hosts_file(other)
  assert not is_hosts_file(str(tmp_path / "none.json"))
  assert not is_hosts_file("workers:2")

"""Memory limits and groups of a user's own, on graphs made by hand."""

import numpy as np
import pytest

from tfplace.core import Cluster, Device, OpSpec, Problem, build_graph
from tfplace.core.constraints import (
  keep_together,
  matching,
  num_bytes,
  with_max_memory,
)
from tfplace.errors import FormatError

LOCAL = "/job:localhost/replica:0/task:0/device:"


def _cluster():
  names = ("GPU:0", "GPU:10", "CPU:0")
  devices = tuple(Device(LOCAL + n, n[:3], 100.0) for n in names)
  return Cluster("pair", devices)


@pytest.mark.parametrize(
  ("size", "wanted"),
  [
    ("10GiB", 10 * 2**30),
    ("10GB", 10**10),
    ("1.5 MiB", 1.5 * 2**20),
    ("512", 512),
    ("7B", 7),
    (4096, 4096),
    (0, 0),
  ],
)
def test_a_size_is_bytes(size, wanted):
  assert num_bytes(size) == wanted


@pytest.mark.parametrize(
  "size", ["10gb", "10Gb", "GiB", "-1GB", "", -1, float("nan"), True]
)
def test_what_is_no_size_is_refused(size):
  with pytest.raises(FormatError, match="no memory size"):
    num_bytes(size)


def test_limits_replace_the_memory_of_the_devices_they_name():
  limited = with_max_memory(_cluster(), {"GPU:0": "1KB", LOCAL + "CPU:0": 7})
  assert limited.memory_bytes.tolist() == [1000, 100, 7]
  assert [d.kind for d in limited.devices] == ["GPU", "GPU", "CPU"]


@pytest.mark.parametrize("name", ["GPU:1", "GPU", "0", "", "TPU:0"])
def test_a_device_that_is_not_there_is_named(name):
  with pytest.raises(FormatError, match=r"no device.*GPU:10") as caught:
    with_max_memory(_cluster(), {name: 1})
  assert repr(name) in str(caught.value)


def test_a_name_of_devices_of_two_hosts_is_refused():
  tasks = ("/job:w/task:0/device:CPU:0", "/job:w/task:1/device:CPU:0")
  cluster = Cluster("two", tuple(Device(name, "CPU") for name in tasks))
  with pytest.raises(FormatError, match="2 devices"):
    with_max_memory(cluster, {"CPU:0": 1})
  limited = with_max_memory(cluster, {"/task:1/device:CPU:0": 1})
  assert limited.memory_bytes.tolist() == [np.inf, 1]


def test_two_sizes_of_one_device_are_refused():
  with pytest.raises(FormatError, match=r"two memory sizes, .*'GPU:0'"):
    with_max_memory(_cluster(), {LOCAL + "GPU:0": 1, "GPU:0": 2})


def _graph():
  groups = (None, "x", "x", None, "y", "y", None)
  names = ("net/a", "net/b", "b/c", "d", "net_1/a", "f", "g")
  ops = [
    OpSpec(name, "T", {"CPU": 1.0}, colocation=group)
    for name, group in zip(names, groups, strict=True)
  ]
  return build_graph("seven", ops, [(0, -1, 1)])


def test_groups_that_meet_are_merged_and_the_others_stay():
  # x = {1, 2} and {0, 1} meet in 1; y = {4, 5} and {5, 6} in 5; 3 is free.
  graph = keep_together(_graph(), [[1, 0], [5, 6], [3]])
  assert Problem(graph, _cluster()).group_of.tolist() == [0, 0, 0, 1, 2, 2, 2]
  assert graph.colocation_names == ("net/a", "net_1/a")
  assert graph.colocation.tolist() == [0, 0, 0, -1, 1, 1, 1]


def test_without_constraints_the_groups_are_the_same():
  before = Problem(_graph(), _cluster()).group_of
  after = Problem(keep_together(_graph(), []), _cluster()).group_of
  np.testing.assert_array_equal(after, before)


def test_a_pattern_takes_ops_and_scopes():
  assert matching(_graph(), "net") == [0, 1]
  assert matching(_graph(), "net*") == [0, 1, 4]
  assert matching(_graph(), "*/a") == [0, 4]
  with pytest.raises(FormatError, match=r"'nets'.*'net/a'"):
    matching(_graph(), "nets")

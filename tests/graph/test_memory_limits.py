"""Memory limits that a user sets."""

import pytest

from tfplace.errors import FormatError
from tfplace.graph import Cluster, Device
from tfplace.graph.cluster import with_max_memory

LOCAL = "/job:localhost/replica:0/task:0/device:"


def _cluster():
  names = ("GPU:0", "GPU:10", "CPU:0")
  devices = tuple(Device(LOCAL + n, n[:3], 100.0) for n in names)
  return Cluster("pair", devices)


def test_limits_replace_the_memory_of_the_devices_they_name():
  limited = with_max_memory(_cluster(), {"GPU:0": "1KB", LOCAL + "CPU:0": 7})
  assert limited.memory_bytes.tolist() == [1000, 100, 7]
  assert [d.kind for d in limited.devices] == ["GPU", "GPU", "CPU"]


@pytest.mark.parametrize("name", ["GPU:1", "GPU", "0", "", "TPU:0"])
def test_a_device_that_is_not_there_is_named(name):
  with pytest.raises(FormatError, match=r"no device.*GPU:10") as caught:
    with_max_memory(_cluster(), {name: 1})
  assert repr(name) in str(caught.value)


def test_invalid_size_is_named_with_its_device():
  with pytest.raises(
    FormatError, match="limit of 'CPU:0': 'lots' is no memory"
  ):
    with_max_memory(_cluster(), {"CPU:0": "lots"})


def test_two_sizes_of_one_device_are_refused():
  with pytest.raises(FormatError, match=r"two memory sizes, .*'GPU:0'"):
    with_max_memory(_cluster(), {LOCAL + "GPU:0": 1, "GPU:0": 2})

"""The host on which the activations of a device wait."""

import pytest

from tfplace import cluster_preset
from tfplace.placers.offload import host_of

PRESETS = ["v100x2", "2*v100x2", "2*a100x2", "2*p100x2", "2*v100x2+a100x2"]


@pytest.mark.parametrize("preset", PRESETS)
def test_activations_wait_on_the_host_of_their_own_gpu(preset):
  cluster = cluster_preset(preset)
  for device, host in zip(
    cluster.devices, host_of(cluster).tolist(), strict=True
  ):
    there = cluster.devices[host]
    assert there.is_cpu
    assert there.name.rsplit("/", 1)[0] == device.name.rsplit("/", 1)[0]


def test_a_device_without_a_link_to_a_cpu_is_its_own_host():
  cluster = cluster_preset("v100x2")
  gpus = tuple(d for d in cluster.devices if not d.is_cpu)
  names = {device.name for device in gpus}
  links = tuple(k for k in cluster.links if {k.src, k.dst} <= names)
  alone = type(cluster)("gpus", gpus, links)
  assert host_of(alone).tolist() == [0, 1]

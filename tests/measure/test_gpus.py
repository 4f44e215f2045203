"""Devices of one process; logical CPUs stand in for GPUs."""

import pytest
from small_steps import Step

from tfplace.errors import MeasurementError
from tfplace.graph.problem import Problem
from tfplace.measure import (
  LocalDevices,
  MeasurementHarness,
  gpus_cluster,
  messages,
  open_cluster,
)

PREFIX = "/job:localhost/replica:0/task:0/device:"


@pytest.fixture(scope="module")
def local():
  with LocalDevices(logical_cpus=2) as devices:
    yield devices


def test_logical_devices_run_a_placement_in_a_process_of_its_own(
  local: LocalDevices, trained: Step
):
  cluster = gpus_cluster(local)
  assert [d.name for d in cluster.devices] == [
    PREFIX + "CPU:0",
    PREFIX + "CPU:1",
  ]
  assert len(cluster.links) == 2
  assert local.pids == ()
  problem = Problem(trained.graph, cluster)
  harness = MeasurementHarness(problem, trained.traced, local, steps=3)
  evaluation = harness.evaluate(trained.on({"y": 1, "grad": 1}))[0]
  assert "error" not in evaluation.extra
  assert harness.traces[0].ops["y"].device == PREFIX + "CPU:1"
  assert harness.traces[0].ops["square"].device == PREFIX + "CPU:0"
  assert local.pids == ()


def test_host_without_gpu_is_told_what_to_choose(monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
  with (
    pytest.raises(MeasurementError, match=r"no GPU.*workers:N"),
    open_cluster("gpus"),
  ):
    pass


def test_logical_gpus_need_a_memory_limit():
  with pytest.raises(MeasurementError, match="memory_bytes"):
    LocalDevices(logical_gpus=2)


@pytest.mark.parametrize("name", ["workers", "workers:x", "workers:-1", "tpus"])
def test_unknown_clusters_are_refused_with_the_choices(name):
  with pytest.raises(MeasurementError, match="workers:N"), open_cluster(name):
    pass


def test_logical_gpus_are_virtual_devices_with_memory_limits():
  from tfplace.measure import session

  config = messages.ChildConfig(gpus=True, gpu_memory_mb=[512.0, 512.0])
  options = session.session_config(config).gpu_options
  virtual = options.experimental.virtual_devices
  assert [list(v.memory_limit_mb) for v in virtual] == [[512.0, 512.0]]
  assert options.visible_device_list == "0"

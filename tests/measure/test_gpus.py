"""Devices of one process; logical CPUs stand in for GPUs."""

import contextlib
import importlib
import weakref

import pytest
import tensorflow as tf

from tests.testing.small_steps import Step
from tests.testing.traced_steps import run_steps
from tfplace.errors import MeasurementError
from tfplace.extraction.traced import feed_values
from tfplace.graph.cluster import Device
from tfplace.graph.problem import Problem
from tfplace.measure import cluster
from tfplace.measure.cluster import open_cluster
from tfplace.measure.harness import MeasurementHarness
from tfplace.measure.local import devices as local_devices
from tfplace.measure.local import runtime
from tfplace.measure.local.devices import LocalDevices
from tfplace.measure.session import messages, session
from tfplace.plan import clusters
from tfplace.plan.stages import Stages

PREFIX = "/job:localhost/replica:0/task:0/device:"


def test_logical_devices_run_a_placement_in_a_process_of_its_own(trained: Step):
  seen = []

  class Seen(LocalDevices):
    def run(self, request, timeout_s, on_stage):
      seen.append(request)
      return super().run(request, timeout_s, on_stage)

  names = [PREFIX + "CPU:0", PREFIX + "CPU:1"]
  with Seen(logical_cpus=2) as local:
    cluster = local.cluster()
    assert [d.name for d in cluster.devices] == names
    assert len(cluster.links) == 2
    problem = Problem(trained.graph, cluster)
    harness = MeasurementHarness(problem, trained.traced, local, steps=3)
    (evaluation,) = harness.evaluate(trained.on({"y": 1, "grad": 1}))
    assert local.pids == ()
  # Timed steps are optimized by Grappler, which has other names; the trace has
  # all ops, and losses are equal.
  assert seen[-1].optimized
  ops = harness.traces[0].ops
  assert {"y", "square", "grad", "delta"} <= set(ops)
  assert [ops["square"].device, ops["y"].device] == names
  first, last = evaluation.extra["fetches"], evaluation.extra["last_fetches"]
  feed = feed_values(trained.traced)
  expected = [float(f[0]) for f in run_steps(trained.traced, [feed] * 8)]
  # The first step, three of warm-up and three timed ones, and the last.
  assert first["loss:0"] == pytest.approx(expected[0], rel=1e-5)
  assert last["loss:0"] == pytest.approx(expected[7], rel=1e-5)


def test_traced_steps_run_without_the_variables_of_timed_ones(monkeypatch):
  # A session's memory is free once nothing refers to it, not when it is closed.
  opened, left = [], []
  initialize = session._initialize

  def initialized(tf_session, request):
    left.append([one for one in opened if one() is not None])
    opened.append(weakref.ref(tf_session))
    initialize(tf_session, request)

  monkeypatch.setattr(session, "_initialize", initialized)
  with tf.Graph().as_default() as graph:
    tf.no_op("step")
  request = messages.StepRequest(
    graph_def=graph.as_graph_def().SerializeToString(),
    initializers=(),
    initializer_feeds=(),
    fetches={},
    targets=["step"],
    warmup=1,
    steps=1,
    traced_steps=1,
    phase_s=1.0,
    optimized=True,
  )
  proto = session.session_config(messages.ChildConfig())
  assert len(session.run_steps(request, "", proto, lambda _: None).traces) == 1
  assert left == [[], []]


def test_host_without_gpu_is_told_what_to_choose(monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
  with (
    pytest.raises(MeasurementError, match=r"no GPU.*workers:N"),
    open_cluster("gpus"),
  ):
    pass


@pytest.mark.parametrize(
  ("name", "is_left"), [("gpus", True), ("slurm", True), ("workers:2", False)]
)
def test_commands_leave_gpus_to_the_processes_that_run(
  name, is_left, monkeypatch
):
  # A task of a job serves this host's GPUs in a child process.
  class StartedError(Exception):
    """The processes start."""

  def started(*_):
    raise StartedError

  seen = []
  monkeypatch.setattr(cluster, "open_cluster", started)
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: ["a GPU"])
  monkeypatch.setattr(
    tf.config, "set_visible_devices", lambda *left: seen.append(left)
  )
  recurrent = importlib.import_module("keras.src.backend.tensorflow.rnn")
  monkeypatch.setattr(recurrent, "_is_gpu_available", lambda: False)
  with pytest.raises(StartedError), clusters.opened(name, Stages()):
    pass
  assert seen == [([], "GPU")] * is_left
  # Keras traces recurrent layers as the processes with GPUs run them.
  assert recurrent._is_gpu_available() == is_left


def test_links_are_measured_with_progress(monkeypatch):
  told = []

  def local(*_):
    return LocalDevices(logical_cpus=2)

  monkeypatch.setattr(cluster, "_runtime", local)
  monkeypatch.setattr(local_devices, "leave_gpus", lambda: False)
  show = Stages(lambda *_: contextlib.nullcontext(told.append))
  with clusters.opened("gpus:2", show) as (found, _):
    assert len(found.links) == 2
  # Three sizes of a pair, with few and with many hops.
  assert told == ["transfers, 0 of 6"]


def test_processes_with_gpus_keep_the_users_settings(monkeypatch):
  monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2")
  for name in ("MALLOC_ARENA_MAX", "TF_GPU_THREAD_MODE"):
    monkeypatch.delenv(name, raising=False)
  found = runtime._environment(messages.ChildConfig(gpus=True))
  assert found["TF_XLA_FLAGS"] == "--tf_xla_auto_jit=2"
  assert "MALLOC_ARENA_MAX" not in found
  # Every GPU is fed by threads of its own, unless the user chose.
  assert found["TF_GPU_THREAD_MODE"] == "gpu_private"
  monkeypatch.setenv("TF_GPU_THREAD_MODE", "gpu_shared")
  found = runtime._environment(messages.ChildConfig(gpus=True))
  assert found["TF_GPU_THREAD_MODE"] == "gpu_shared"


def test_logical_gpus_share_the_memory_of_the_first(monkeypatch):
  class OneGpu:
    """A process that has one GPU of 1000 MiB, or its logical GPUs."""

    pid, name, configs = 0, "process", []

    def __init__(self, name, config):
      self.configs.append(config)

    def kill(self):
      pass

    def receive(self, timeout_s, doing):
      sizes = OneGpu.configs[-1].gpu_memory_mb or [1000.0]
      found = {f"{PREFIX}GPU:{i}": mb * 2**20 for i, mb in enumerate(sizes)}
      found[PREFIX + "CPU:0"] = 1.0
      described = OneGpu.configs[-1].describes_gpus
      gpus = [Device(name, "GPU", found[name]) for name in [*found][:-1]]
      return messages.Ready(found, gpus if described else ())

  monkeypatch.setattr(runtime, "Child", OneGpu)
  with LocalDevices(logical_gpus=2) as local:
    # 0.9 of 1000 MiB for the two; the GPUs come before the CPU.
    assert list(OneGpu.configs[-1].gpu_memory_mb) == [450.0, 450.0]
    assert local.device_names == tuple(
      PREFIX + name for name in ("GPU:0", "GPU:1", "CPU:0")
    )
    assert local._device(PREFIX + "GPU:1").memory_bytes == 450 * 2**20
    # Only the process with both describes them, and only once.
    local.stop()
    local.start()
    described = [config.describes_gpus for config in OneGpu.configs]
    assert described == [False, True, False]


@pytest.mark.parametrize(
  "name", ["workers", "workers:x", "workers:-1", "gpus:x", "tpus"]
)
def test_unknown_clusters_are_refused_with_the_choices(name):
  with pytest.raises(MeasurementError, match="workers:N"), open_cluster(name):
    pass

"""A step whose activations may wait elsewhere computes the same."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers

from tfplace import Problem, cluster_preset, extract, place
from tfplace.core.microbatches import MicrobatchConfig, microbatches_of
from tfplace.core.offload import is_offload, offload_config
from tfplace.core.recompute import is_clone, recompute_config
from tfplace.errors import ExtractionError
from tfplace.extraction import run_steps, trace_keras
from tfplace.placers.offload import host_of, offload_ops
from tfplace.plan.sources import op_graph
from tfplace.simulate import Simulator

BATCH, WIDTH = 8, 64


def attention():
  x = start = keras.Input((16, WIDTH))
  for i in range(2):
    y = layers.MultiHeadAttention(2, 32, dropout=0.1, name=f"attend_{i}")(x, x)
    x = layers.LayerNormalization()(x + layers.Dropout(0.2)(y))
    x = x + layers.Dense(WIDTH, activation="gelu")(x)
  return keras.Model(start, layers.Dense(5)(x))


def convolutions():
  x = image = keras.Input((16, 16, 3))
  for _ in range(3):
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
  return keras.Model(image, layers.Dense(5)(layers.Flatten()(x)))


def recurrent():
  x = series = keras.Input((9, 6))
  x = layers.LSTM(WIDTH, return_sequences=True)(layers.Masking()(x))
  return keras.Model(series, layers.Dense(5)(layers.Dense(WIDTH)(x)))


def compiled(build):
  keras.utils.set_random_seed(0)
  model = build()
  model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
  return model


def traced(model, offload="all", microbatches=1, recompute="none"):
  config = MicrobatchConfig(
    microbatches,
    allow_batch_statistics=True,
    recompute=recompute_config(recompute),
    offload=offload_config(offload),
  )
  return trace_keras(model, BATCH, microbatches=config)


def held(step):
  return [node for node in step.graph_def.node if is_offload(node.name)]


@pytest.mark.parametrize("build", [attention, convolutions, recurrent])
def test_steps_equal_those_whose_activations_stay(build):
  model = compiled(build)
  rng = np.random.default_rng(0)
  for microbatches, ways in ((1, ("none", "all")), (2, ("none",))):
    kept = traced(model, "none", microbatches)
    data = [
      {f.tensor: rng.random(f.shape, np.float32) for f in kept.feeds.values()}
      for _ in range(4)
    ]
    expected = run_steps(kept, data)
    for recompute in ways:
      waits = traced(model, "all", microbatches, recompute)
      assert held(waits)
      for step, known in zip(run_steps(waits, data), expected, strict=True):
        np.testing.assert_allclose(step, known, rtol=1e-6)


def test_only_the_backward_pass_reads_what_is_held_and_it_waits_for_it():
  step = traced(compiled(attention))
  names = {node.name for node in held(step)}
  for node in step.graph_def.node:
    reads = [text.split(":")[0].lstrip("^") for text in node.input]
    if names.intersection(reads):
      assert "gradient_tape" in node.name
    if node.name in names:
      assert len([name for name in node.input if name.startswith("^")]) == 1


def test_the_names_of_a_step_tell_what_it_offloads():
  model = compiled(attention)
  step = traced(model, "all", 2, "all")
  names = [node.name for node in step.graph_def.node]
  config = microbatches_of(names)
  assert config.offload.tensors and config.recompute.ops
  assert any(map(is_clone, names))
  again = trace_keras(model, BATCH, microbatches=config)
  assert [node.name for node in again.graph_def.node] == names


def wide():
  x = start = keras.Input((1024,))
  for _ in range(12):
    x = layers.Dense(1024, activation="tanh")(x)
  model = keras.Model(start, x)
  model.compile("sgd", "mse")
  return model


@pytest.fixture(scope="module")
def problem():
  cluster = cluster_preset("v100x1")
  graph = extract(wide(), cluster, batch_size=8192, offload="all")
  return Problem(graph, cluster)


def evaluated(problem, count):
  """The step on the GPU with the first activations on its host."""
  gpu, cpu = (
    next(i for i, d in enumerate(problem.cluster.devices) if d.kind == kind)
    for kind in ("GPU", "CPU")
  )
  kind = problem.cluster.devices[gpu].kind
  devices = np.where(np.isnan(problem.graph.time_us[kind]), cpu, gpu)
  devices[offload_ops(problem)[:count]] = cpu
  (found,) = Simulator(problem).evaluate(devices[None].astype(np.int32))
  return found, problem.cluster.devices[gpu].name


def test_activations_on_the_host_free_memory_and_come_back_in_time(problem):
  kept, gpu = evaluated(problem, 0)
  waits, _ = evaluated(problem, 3)
  size = 8192 * 1024 * 4
  freed = kept.peak_memory_bytes[gpu] - waits.peak_memory_bytes[gpu]
  assert 2 * size <= freed <= 3 * size
  assert waits.step_time_us <= 1.02 * kept.step_time_us


def limited(problem, memory_bytes):
  cluster = problem.cluster
  devices = tuple(
    dataclasses.replace(d, memory_bytes=memory_bytes) if d.kind != "CPU" else d
    for d in cluster.devices
  )
  return Problem(problem.graph, dataclasses.replace(cluster, devices=devices))


def test_a_step_that_does_not_fit_sends_only_what_costs_no_time(problem):
  kept, gpu = evaluated(problem, 0)
  peak = kept.peak_memory_bytes[gpu]
  short = limited(problem, peak - 1e6)
  found = place(short, "single")
  on_host = found.placement.devices[offload_ops(short)] == host_of(
    short.cluster
  ).max(initial=0)
  assert found.evaluation.feasible
  assert 1 <= on_host.sum() < len(on_host)
  assert found.evaluation.step_time_us <= 1.02 * kept.step_time_us


@pytest.mark.parametrize("value", ["some", 3, ["dense"], None])
def test_errors_name_the_value_and_the_choices(value):
  with pytest.raises(ExtractionError, match=r"it must be 'none', 'all' or"):
    extract("rnnlm_2", offload=value)


def test_auto_is_for_what_chooses():
  with pytest.raises(ExtractionError, match="which planning chooses"):
    extract("rnnlm_2", offload="auto")


def test_inference_and_traced_graphs_have_no_activations_to_hold():
  with pytest.raises(ExtractionError, match="offload is all, and 'rnnlm_2'"):
    extract("rnnlm_2", training=False, offload="all")
  model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
  config = MicrobatchConfig(offload=offload_config("all"))
  with pytest.raises(ExtractionError, match="offload is all"):
    trace_keras(model, BATCH, training=False, microbatches=config)


def test_the_graph_file_marks_what_is_held(problem, tmp_path):
  from tfplace import formats

  formats.save_graph(problem.graph, tmp_path / "g.json")
  text = (tmp_path / "g.json").read_text()
  assert text.count('"offload"') == len(offload_ops(problem))


def test_costs_of_what_is_held_are_those_of_passing_on_a_buffer():
  cluster = cluster_preset("v100x1")
  graph = op_graph(traced(compiled(attention)), cluster)
  for op, name in enumerate(graph.names):
    if is_offload(name):
      assert graph.types[op] == "Identity"
      assert graph.time_us["CPU"][op] <= 1.0

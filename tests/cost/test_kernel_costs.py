"""The cost model of kernel times on whole steps."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tfplace import cost
from tfplace.cost.kernels import parameters
from tfplace.cost.kernels.ops import Kernel
from tfplace.cost.kernels.times import times_us
from tfplace.extraction.traced import TracedStep
from tfplace.graph.cluster import Cluster, Device
from tfplace.hardware.presets import cluster_preset

SIDE = 1024


def _step(dtype=tf.float32):
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(dtype, [SIDE, SIDE], name="x")
    product = tf.matmul(x, x, name="product")
    tf.nn.relu(product, name="relu")
  names = ("relu:0",)
  return TracedStep("g", graph.as_graph_def(), {}, names, (), {}, False)


def _times(cluster, dtype=tf.float32, **options):
  costs = cost.get_cost_model("kernels", **options)
  graph = cost.op_graph(_step(dtype), cluster, cost_model=costs)
  return {n: graph.time_us["GPU"][i] for n, i in graph.index.items()}, graph


def _cluster(hardware):
  return Cluster("c", (Device("d", "GPU", 1e9, 0.0, {"hardware": hardware}),))


def test_it_is_the_default_and_times_kernels_by_the_parameters():
  cluster = cluster_preset("v100x1")
  graph = cost.op_graph(_step(), cluster)
  assert graph.extra["costs"] == "kernels"
  kernels = [
    Kernel("matmul", "tf32", (1, SIDE, SIDE, SIDE)),
    Kernel("elementwise", "fp32", (2 * 4 * SIDE * SIDE, 0.0, 0.0)),
  ]
  gpu = cost.assemble.grappler.described_by_kind(cluster)["GPU"].gpu
  expected = times_us(kernels, gpu, parameters.load())
  found = [graph.time_us["GPU"][graph.index[n]] for n in ("product", "relu")]
  np.testing.assert_allclose(found, expected)


def test_tensor_float_32_follows_the_argument_then_tensorflow():
  cluster = cluster_preset("a100x1")
  on, _ = _times(cluster, tensor_float_32=True)
  off, _ = _times(cluster, tensor_float_32=False)
  assert off["product"] > 2 * on["product"]
  assert off["relu"] == on["relu"]
  default, _ = _times(cluster)
  assert default == on
  tf.config.experimental.enable_tensor_float_32_execution(False)
  try:
    assert _times(cluster)[0] == off
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(True)


def test_the_documented_card_has_costs():
  root = pathlib.Path(__file__).parents[2]
  text = (root / "docs" / "costs.md").read_text(encoding="utf-8")
  (example,) = re.findall(
    r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
  )
  times, _ = _times(_cluster(json.loads(example)))
  # Not faster than its 35.6 TFLOPS, and more than a third of them.
  assert 1 <= 35.6e6 * times["product"] / (2 * SIDE**3) < 3


@pytest.mark.parametrize(
  ("dtype", "tensor_float_32", "gflops"),
  [
    (tf.float16, True, 312e3),
    (tf.float32, True, 156e3),
    (tf.float32, False, 2e-3 * 6912 * 1410),
  ],
)
def test_time_at_peak_follows_the_precision(dtype, tensor_float_32, gflops):
  _, graph = _times(
    cluster_preset("a100x1"), dtype, tensor_float_32=tensor_float_32
  )
  at_peak = graph.peak_us["GPU"]
  # 2 * 1024**3 operations at the peak of the data sheet; the ReLU has none.
  expected = 2 * SIDE**3 / (gflops * 1e3)
  assert at_peak[graph.index["product"]] == pytest.approx(expected)
  assert at_peak[graph.index["relu"]] == 0.0
  assert at_peak[graph.index["product"]] <= graph.time_us["GPU"].max()


@pytest.mark.parametrize("costs", ["kernels", "grappler"])
def test_costs_of_a_huge_step_take_no_memory_of_its_size(costs):
  side = 1 << 20  # 4 TiB of float32
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [side, side], name="x")
    tf.sigmoid(x, name="y")
  step = TracedStep("g", graph.as_graph_def(), {}, ("y:0",), (), {}, False)
  found = cost.op_graph(step, cluster_preset("v100x1"), cost_model=costs)
  # 8 TiB at no more than 900 GB/s; the CPU has 136.5 GB/s.
  for kind, bandwidth in (("GPU", 900e3), ("CPU", 136.5e3)):
    least_us = 2 * 4 * side**2 / bandwidth
    assert found.time_us[kind][found.index["y"]] >= 0.99 * least_us

"""Features: shapes, ranges, and what must not change them."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.graph import Cluster, OpSpec, build_graph
from tfplace.hardware import presets
from tfplace.learned import features
from tfplace.learned.decisions import group_decisions


def extracted(graph, cluster, max_decisions=None):
  decisions = group_decisions(problem_of(graph, cluster), max_decisions)
  return features.extract(decisions)


def scaled(graph, cluster, factor):
  """The same problem with every time and every byte times `factor`."""
  ops = [
    OpSpec(
      name,
      graph.types[i],
      {kind: times[i] * factor for kind, times in graph.time_us.items()},
      [graph.output_bytes[i] * factor],
      graph.persistent_bytes[i] * factor,
    )
    for i, name in enumerate(graph.names)
  ]
  edges = list(
    zip(graph.edge_src, graph.edge_output, graph.edge_dst, strict=True)
  )
  devices = tuple(
    dataclasses.replace(
      d,
      memory_bytes=d.memory_bytes * factor,
      op_overhead_us=d.op_overhead_us * factor,
    )
    for d in cluster.devices
  )
  links = tuple(
    dataclasses.replace(link, latency_us=link.latency_us * factor)
    for link in cluster.links
  )
  return (
    build_graph(graph.name, ops, edges),
    Cluster(cluster.name, devices, links),
  )


@pytest.mark.parametrize("max_decisions", [None, 9])
def test_features_are_finite_and_of_the_promised_shapes(max_decisions):
  found = extracted(
    random_graph(40, seed=0, cpu_only=True), gpus(3, cpu=True), max_decisions
  )
  count, devices = found.allowed.shape
  assert found.node.shape == (count, features.NODE_FEATURES)
  assert found.device.shape == (devices, features.DEVICE_FEATURES)
  assert found.pair.shape == (count, devices, features.PAIR_FEATURES)
  assert found.edge.shape == (len(found.edge_src), features.EDGE_FEATURES)
  assert (found.edge_src != found.edge_dst).all()
  for array in found.tensors().values():
    assert np.isfinite(array).all()
    assert array.dtype in (np.float32, np.int32, bool)


def test_numbers_are_relative_and_names_do_not_matter():
  graph, cluster = random_graph(30, seed=3), gpus(2, cpu=True)
  one = extracted(graph, cluster)
  renamed = dataclasses.replace(graph, names=tuple(graph.names[::-1]))
  for name, array in extracted(renamed, cluster).tensors().items():
    np.testing.assert_array_equal(one.tensors()[name], array)
  # Microseconds or nanoseconds, bytes or kilobits: the same problem.
  other = extracted(*scaled(graph, cluster, 1000.0))
  for name, array in one.tensors().items():
    np.testing.assert_allclose(array, other.tensors()[name], atol=1e-4)


def test_type_is_that_of_the_costliest_op_of_a_decision():
  ops = [
    OpSpec("a", "Cheap", {"GPU": 1.0}, [4], colocation="g"),
    OpSpec("b", "Dear", {"GPU": 9.0}, [4], colocation="g"),
    OpSpec("c", "Dear", {"GPU": 9.0}, [4]),
    OpSpec("d", "Cheap", {"GPU": 1.0}, [4]),
  ]
  graph = build_graph("g", ops, [(0, 0, 1), (1, 0, 2), (2, 0, 3)])
  group, dear, cheap = extracted(graph, gpus(2)).type_id
  assert group == dear != cheap


def test_names_say_how_far_along_each_axis_a_decision_is():
  # Four steps of two layers, and an op that is in none.
  names = [f"model/step_{s}/layer_{i}/MatMul" for s in range(4) for i in (1, 5)]
  ops = [
    OpSpec(name, "MatMul", {"GPU": 10.0 + i}, [4.0])
    for i, name in enumerate([*names, "loss"])
  ]
  edges = [(i, 0, i + 1) for i in range(8)]
  graph = build_graph("unrolled", ops, edges)
  decisions = group_decisions(problem_of(graph, gpus(2)))
  layer, step, none = decisions.axes(3)  # both have all work: by name
  assert step.tolist()[:8] == [0, 0, 1, 1, 2, 2, 3, 3]
  assert layer.tolist()[:8] == [0, 1] * 4
  assert (none == -1).all()
  found = features.extract(decisions, axes=3)
  plain = features.extract(decisions)
  np.testing.assert_array_equal(found.node[:, :-6], plain.node)
  np.testing.assert_array_equal(found.pair[..., :-9], plain.pair)
  # The seventh has 3.5 of 4 steps, 0.5 of 2 layers.
  np.testing.assert_allclose(
    found.node[6, -6:], [0.5 / 2, 3.5 / 4, 0, 1, 1, 0], rtol=1e-6
  )
  # A layer to each GPU; half of the steps, 3.5 / 4 * 2 - 0.5 blocks away from
  # the first GPU's. The first layer is its turn, the last step is not.
  np.testing.assert_allclose(
    found.pair[6, :, 9:],
    [[0.0, 1, 1, 1.25, 0, 0, 0, 0, 0], [-1.0, 0, 0, 0.25, 1, 1, 0, 0, 0]],
    rtol=1e-6,
  )


def test_policies_see_the_speed_and_the_type_of_each_kind():
  cluster = presets.cluster_preset("1*v100x1+a100x1")
  times = {"GPU-v100": 30.0, "GPU-a100": 10.0}
  times |= {"CPU-dgx-1": 900.0, "CPU-dgx-a100": 900.0}
  graph = build_graph("g", [OpSpec("a", "MatMul", times, [4.0])], [])
  device = extracted(graph, cluster).device
  # Column 2 is the logarithm of the time over that of the fastest device,
  # clipped at 5, and column 8 says that the device is a CPU.
  np.testing.assert_allclose(
    device[:, 2], np.log([3.0, 90.0, 1.0, 90.0]), rtol=1e-6
  )
  assert device[:, 8].tolist() == [0, 1, 0, 1]

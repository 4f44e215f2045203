"""More devices never make a search worse, for equal evaluations per cluster."""

import numpy as np
import pytest

from tfplace import OpSpec, Problem, build_graph, cluster_preset, place
from tfplace.graph.cluster import with_max_memory
from tfplace.placers import sub_clusters
from tfplace.placers.beside_gpus import place_beside_gpus
from tfplace.placers.sub_clusters import part_of, parts

CLUSTERS = {
  "2*v100x2": [[0, 1, 2]],
  "v100x2+p100x2": [[0, 1, 4], [2, 3, 4]],
  "2*v100x1+a100x2": [[0, 1], [4, 5, 6]],
  "v100x4": [],
}


def layered(cluster, seed, layers=40):
  """A graph of layers with branches, whose tensors are costly to send."""
  rng = np.random.default_rng(seed)
  kinds = {d.kind for d in cluster.devices}
  ops, edges = [], []
  for layer in range(layers):
    for branch in range(3):
      us = float(rng.uniform(20, 400))
      time_us = {
        kind: us
        * (20 if kind.startswith("CPU") else 2 if "p100" in kind else 1)
        for kind in kinds
      }
      size = [float(rng.uniform(1e5, 4e6))]
      ops.append(OpSpec(f"o{layer}_{branch}", "MatMul", time_us, size))
      for before in range(3 * (layer - 1), 3 * layer) if layer else ():
        if before % 3 == branch or rng.random() < 0.3:
          edges.append((before, 0, len(ops) - 1))
  return build_graph("layered", ops, edges)


@pytest.mark.parametrize("name", CLUSTERS)
def test_parts_are_hosts_of_each_sort_or_kinds_of_a_host(name):
  cluster = cluster_preset(name)
  found = [devices.tolist() for devices in parts(cluster)]
  assert found == CLUSTERS[name]
  for devices in found:
    part = part_of(cluster, np.array(devices))
    assert part.is_fully_linked
    assert part.devices == tuple(cluster.devices[i] for i in devices)


@pytest.mark.parametrize("name", [n for n, found in CLUSTERS.items() if found])
@pytest.mark.parametrize("strategy", ["annealing", "brkga"])
def test_a_cluster_is_never_slower_than_its_parts(name, strategy):
  cluster = cluster_preset(name)
  for seed in range(3):
    graph = layered(cluster, seed)
    options = {"strategy": strategy, "seed": seed, "max_evaluations": 60}
    whole = place(Problem(graph, cluster), **options)
    for devices in parts(cluster):
      part = Problem(graph, part_of(cluster, devices))
      found = place(part, **options)
      assert whole.evaluation.step_time_us <= found.evaluation.step_time_us


def test_a_part_that_lacks_memory_is_not_searched(monkeypatch):
  cluster = cluster_preset("v100x1+p100x1")
  gpus = [d.name for d in cluster.devices if not d.is_cpu]
  tight = with_max_memory(cluster, dict.fromkeys(gpus, 30.0))
  kinds = {d.kind: 1.0 for d in cluster.devices if not d.is_cpu}
  ops = [OpSpec(str(i), "X", kinds, persistent_bytes=10.0) for i in range(5)]
  searched = []

  def placed(request, problem, *rest):
    searched.append(problem.cluster.num_devices)
    return place_beside_gpus(request, problem, *rest)

  monkeypatch.setattr(sub_clusters, "place_beside_gpus", placed)
  result = place(Problem(build_graph("g", ops, []), tight), "annealing")
  assert searched == [tight.num_devices]
  assert result.evaluation.feasible

"""More devices never make a search worse, for equal evaluations per part."""

import numpy as np
import pytest

from tfplace import OpSpec, Problem, build_graph, cluster_preset, place
from tfplace.errors import InfeasibleError
from tfplace.graph.cluster import with_max_memory
from tfplace.placers import sub_clusters
from tfplace.placers.beside_gpus import gpus_compute, place_beside_gpus
from tfplace.placers.sub_clusters import part_of, parts
from tfplace.simulate import Simulator

CLUSTERS = {
  "2*v100x2": [[0, 1, 2]],
  "v100x2+p100x2": [[0, 1, 4], [2, 3, 4]],
  "2*v100x1+a100x2": [[0, 1], [4, 5, 6], [0, 1, 2, 3]],
  "2*(v100x1+p100x1)": [[0, 1, 2], [0, 2, 3, 5], [1, 2, 4, 5]],
  "1*v100x2-pcie+1*v100x2": [[0, 1, 2], [3, 4, 5]],  # Their links differ.
  "p100x1+v100x1": [[0, 2], [1, 2]],
  "v100x3": [[0, 1, 3]],
  "v100x1": [],
}
SLOWER = {"CPU": 20, "p100": 2, "a100": 0.5, "": 1}  # than a V100


def layered(cluster, seed, layers=40, lacks=None):
  """A graph of layers with branches, whose tensors are costly to send.

  Kinds of devices that `lacks` names have no kernel for every n-th op.
  """
  rng = np.random.default_rng(seed)
  kinds = {d.kind for d in cluster.devices}
  ops, edges = [], []
  for layer in range(layers):
    for branch in range(3):
      us = float(rng.uniform(20, 400))
      time_us = {
        kind: us * next(factor for key, factor in SLOWER.items() if key in kind)
        for kind in kinds
      }
      for kind, every in (lacks or {}).items():
        if len(ops) % every == 0:
          del time_us[kind]
      size = [float(rng.uniform(1e5, 4e6))]
      ops.append(OpSpec(f"o{layer}_{branch}", "MatMul", time_us, size))
      for before in range(3 * (layer - 1), 3 * layer) if layer else ():
        if before % 3 == branch or rng.random() < 0.3:
          edges.append((before, 0, len(ops) - 1))
  return build_graph("layered", ops, edges)


@pytest.mark.parametrize("name", CLUSTERS)
def test_parts_are_hosts_of_each_sort_kinds_and_halves(name):
  cluster = cluster_preset(name)
  found = [devices.tolist() for devices in parts(cluster)]
  assert found == CLUSTERS[name]
  for devices in found:
    part = part_of(cluster, np.array(devices))
    assert part.is_fully_linked
    assert part.devices == tuple(cluster.devices[i] for i in devices)


@pytest.mark.parametrize("name", [n for n, found in CLUSTERS.items() if found])
@pytest.mark.parametrize("strategy", ["annealing", "brkga", "auto"])
def test_a_cluster_is_never_slower_than_its_parts(name, strategy):
  cluster = cluster_preset(name)
  for seed in range(2):
    graph = layered(cluster, seed)
    options = {"strategy": strategy, "seed": seed, "max_evaluations": 60}
    whole = place(Problem(graph, cluster), **options)
    for devices in parts(cluster):
      part = Problem(graph, part_of(cluster, devices))
      found = place(part, **options)
      assert whole.evaluation.step_time_us <= found.evaluation.step_time_us
    for result in (whole, *whole.tried):
      problem = result.placement.problem
      assert problem.cluster is cluster
      (again,) = Simulator(problem).evaluate([result.placement])
      assert again.step_time_us == result.evaluation.step_time_us


def test_a_start_has_no_more_work_on_cpus_than_the_search_may(monkeypatch):
  """Every sixth op has no kernel for a V100, and would run on the CPU there."""
  monkeypatch.setattr(sub_clusters, "_LEAD", -9.0)
  cluster = cluster_preset("v100x2+p100x2")
  graph = layered(cluster, 0, lacks={"GPU-v100": 6})
  problem = Problem(graph, cluster)
  searched = spied(monkeypatch)
  result = place(problem, "auto", max_evaluations=150)
  starts = searched[0][-1]
  ops = np.arange(graph.num_ops)
  assert gpus_compute(problem).allowed[ops, starts[0]].all()
  assert "init" not in {one.strategy for one in result.tried}  # None is given.


def test_a_part_that_lacks_memory_is_not_searched(monkeypatch):
  cluster = cluster_preset("v100x1+p100x1")
  gpus = [d.name for d in cluster.devices if not d.is_cpu]
  tight = with_max_memory(cluster, dict.fromkeys(gpus, 30.0))
  kinds = {d.kind: 1.0 for d in cluster.devices if not d.is_cpu}
  ops = [OpSpec(str(i), "X", kinds, persistent_bytes=10.0) for i in range(5)]
  searched = spied(monkeypatch)
  problem = Problem(build_graph("g", ops, []), tight)
  result = place(problem, "annealing", max_evaluations=20)
  assert [each[0] for each in searched] == [tight.num_devices]
  assert result.evaluation.feasible


def spied(monkeypatch):
  """Records the number of devices and the starts of each search."""
  searched = []

  def placed(request, problem, budget, starts):
    searched.append((problem.cluster.num_devices, starts))
    return place_beside_gpus(request, problem, budget, starts)

  monkeypatch.setattr(sub_clusters, "place_beside_gpus", placed)
  return searched


@pytest.mark.parametrize("name", ["2*v100x2", "v100x2+p100x2"])
def test_a_whole_step_starts_from_a_part_that_leads(monkeypatch, name):
  cluster = cluster_preset(name)
  graph = layered(cluster, 0)
  problem = Problem(graph, cluster)
  devices = parts(cluster)[0]  # Those of the other kind are slower.
  part = gpus_compute(Problem(graph, part_of(cluster, devices)))
  fastest_us = min(
    place(part, rule).evaluation.step_time_us for rule in ("m_etf", "heft")
  )
  searched = spied(monkeypatch)
  place(problem, "annealing", budget_s=0.5)  # No part leads here.
  monkeypatch.setattr(sub_clusters, "_LEAD", -9.0)
  place(problem, "annealing", budget_s=1e-3)
  result = place(problem, "annealing", budget_s=0.5)
  *others, (_, starts) = searched
  assert [starts for _, starts in others] == [None, None]
  (start,) = Simulator(problem).evaluate(starts)
  assert start.step_time_us == pytest.approx(fastest_us)
  assert np.isin(starts, devices).all()
  assert result.evaluation.step_time_us <= start.step_time_us


def test_a_part_is_placed_where_the_search_on_all_devices_finds_nothing(
  monkeypatch,
):
  def placed(request, problem, budget, starts):
    if problem.cluster is cluster:
      raise InfeasibleError("nothing found fits")
    return place_beside_gpus(request, problem, budget, starts)

  monkeypatch.setattr(sub_clusters, "place_beside_gpus", placed)
  cluster = cluster_preset("2*v100x2")
  problem = Problem(layered(cluster, 0), cluster)
  result = place(problem, "annealing", max_evaluations=20)
  assert np.isin(result.placement.devices, [0, 1, 2]).all()
  with pytest.raises(InfeasibleError, match="nothing found fits"):
    place(problem, "annealing", budget_s=0.2)

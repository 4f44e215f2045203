"""Tests of CPUs beside GPUs."""

import math

import numpy as np
import pytest

import tfplace
from tests.testing.clusters import linked
from tfplace import placers
from tfplace.cost import with_measured_times
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import format_us
from tfplace.placers import beside_gpus
from tfplace.placers.beside_gpus import cpu_note, gpus_compute

MIB = 2.0**20


def _cluster(gpus: int = 1, memory_bytes: float = math.inf) -> Cluster:
  names = [f"/device:GPU:{i}" for i in range(gpus)]
  devices = [Device(name, "GPU", memory_bytes) for name in names]
  return linked([*devices, "/device:CPU:0"])


def _parallel(cpu_us: float, size: float = 8.0, count: int = 20) -> Problem:
  """Independent ops of 100 us each on a GPU."""
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 100.0, "CPU": cpu_us}, [size])
    for i in range(count)
  ]
  return Problem(build_graph("parallel", ops, []), _cluster())


def _on_cpu(result) -> int:
  devices = result.placement.problem.cluster.devices
  is_cpu = np.array([device.is_cpu for device in devices])
  return int(is_cpu[result.placement.devices].sum())


def _place(problem: Problem, strategy: str = "auto", seed: int = 0):
  return tfplace.place(
    problem, strategy, budget_s=1e3, seed=seed, max_evaluations=600
  )


@pytest.mark.parametrize("strategy", ["auto", "annealing"])
def test_a_cpu_that_gains_little_computes_nothing(strategy):
  # 19 ops on the GPU and one on the CPU take 1,900 us instead of 2,000: 5% less
  # would be 1,900, so a CPU op of 1,950 us gains 2.5%.
  result = _place(_parallel(cpu_us=1950.0), strategy)
  assert _on_cpu(result) == 0
  assert result.evaluation.step_time_us == 2000.0
  assert result.all_on_gpus_us is None


@pytest.mark.parametrize("strategy", ["auto", "annealing"])
def test_a_cpu_that_gains_enough_computes(strategy):
  # 10 ops on each device take 1,000 us instead of 2,000.
  result = _place(_parallel(cpu_us=100.0), strategy)
  assert _on_cpu(result) == 10
  assert result.evaluation.step_time_us == 1000.0
  assert result.all_on_gpus_us == 2000.0


def test_a_short_search_leaves_cpus_out_unless_a_start_has_them():
  # 2,000 ops are short of 1 s.
  problem = _parallel(cpu_us=100.0, count=2000)
  placers.warm_up("auto")
  result = tfplace.place(problem, "auto", budget_s=0.3)
  assert _on_cpu(result) == 0
  assert result.evaluation.step_time_us == 200_000.0
  half = Placement(problem, np.arange(2000) % 2)
  result = tfplace.place(problem, "auto", budget_s=0.3, init_placement=half)
  assert result.evaluation.step_time_us == 100_000.0


def test_a_short_search_keeps_time_for_cpus_where_memory_may_be_short(
  monkeypatch,
):
  # The GPU holds 250 of the 400 MiB that the ops write before they are added.
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 100.0, "CPU": 100.0}, [MIB])
    for i in range(400)
  ]
  ops += [
    OpSpec(f"add_{i}", "AddV2", {"GPU": 1.0, "CPU": 1.0}, [8.0])
    for i in range(400)
  ]
  edges = [(i, 0, 400 + i) for i in range(400)]
  edges += [(400 + i, 0, 401 + i) for i in range(399)]
  graph = build_graph("added", ops, edges)
  problem = Problem(graph, _cluster(memory_bytes=250 * MIB))
  placers.warm_up("auto")
  seconds, placed = [], beside_gpus.place_in_order

  def noting(request, problem, budget, starts):
    seconds.append((problem.off_cpu is None, budget.seconds))
    return placed(request, problem, budget, starts)

  monkeypatch.setattr(beside_gpus, "place_in_order", noting)
  result = tfplace.place(problem, "auto", budget_s=0.15)
  assert result.evaluation.feasible and _on_cpu(result) > 0
  (with_cpus, first_s), (also_with_cpus, _) = seconds
  assert not with_cpus and also_with_cpus
  assert first_s == pytest.approx(0.6 * 0.15)


def test_estimates_beside_measured_times_are_told():
  problem = _parallel(cpu_us=100.0)
  graph = with_measured_times(problem.graph, "CPU", {"op_0": 100.0})
  result = _place(Problem(graph, problem.cluster))
  count = _on_cpu(result) - int(result.placement.devices[0] == 1)
  note = cpu_note(result)
  assert f"; {count} ops were not timed on CPUs: their " in note
  assert f"their {format_us(100.0 * count)} are estimates" in note
  assert "estimates" not in cpu_note(_place(problem))


def test_a_cpu_computes_where_memory_asks_for_it():
  # A chain whose ops each hold 1 MiB until the end: the GPU has 2 MiB.
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 1.0, "CPU": 9.0}, [MIB], MIB)
    for i in range(4)
  ]
  graph = build_graph("chain", ops, [(i, 0, i + 1) for i in range(3)])
  few = 3.5 * MIB
  problem = Problem(graph, _cluster(memory_bytes=few))
  result = _place(problem)
  assert result.evaluation.feasible and _on_cpu(result) > 0


def _training_step(cluster: Cluster) -> Problem:
  """A layer with its gradient and update, and an op without a GPU kernel."""
  both = {"GPU": 1.0, "CPU": 1.0}
  ops = [
    OpSpec("dense/w", "VarHandleOp", both, [8.0], 64.0, colocation="w"),
    OpSpec("dense/read", "ReadVariableOp", both, [64.0], colocation="w"),
    OpSpec("dense/MatMul", "MatMul", both, [8.0]),
    OpSpec("dense/Const", "Const", {"GPU": 0.0, "CPU": 0.0}, [8.0]),
    OpSpec("dense/Log", "Print", {"CPU": 1.0}, [8.0]),
    OpSpec("gradient_tape/dense/MatMul/MatMul", "MatMul", both, [64.0]),
    OpSpec("adam/Mul", "Mul", both, [64.0]),
    OpSpec("adam/Assign", "AssignSubVariableOp", both, colocation="w"),
  ]
  edges = [
    *((0, 0, 1), (1, 0, 2), (3, 0, 2), (2, 0, 4), (2, 0, 5), (5, 0, 6)),
    *((6, 0, 7), (0, 0, 7)),
  ]
  return Problem(build_graph("step", ops, edges), cluster)


def test_cpus_keep_variables_updates_and_their_own_ops():
  problem = _training_step(_cluster())
  narrow = gpus_compute(problem)
  barred = {
    name
    for name, is_off in zip(problem.graph.names, narrow.off_cpu, strict=True)
    if is_off
  }
  assert barred == {"dense/MatMul", "gradient_tape/dense/MatMul/MatMul"}
  # Bounds and ranks are those of the problem.
  assert narrow.lower_bound_us == problem.lower_bound_us
  assert np.array_equal(narrow.fastest_us, problem.fastest_us)

"""Odd problems that have a placement: what placers must not stumble over."""

import numpy as np

from tests.testing import problems
from tfplace.graph import OpSpec, Problem, build_graph

INF = np.inf


def _control_edges_and_no_outputs():
  ops = [OpSpec(f"o{i}", "Op", {"GPU": 2.0}) for i in range(9)]
  edges = [(i, -1, i + 3) for i in range(6)]
  return Problem(build_graph("g", ops, edges), problems.cluster([INF] * 2))


def _device_without_memory():
  edges = [(i, i + 2) for i in range(6)]
  graph = problems.graph(
    [4.0] * 8, edges, output_bytes=[(8.0,)] * 8, persistent_bytes=[8.0] * 8
  )
  return Problem(graph, problems.cluster([0.0, 200.0, 200.0]))


def _zero_costs_on_two_kinds():
  """The simple bound is 0, yet no step is: 100 bytes have to move."""
  times = [{"GPU": 0.0}, {"CPU": 0.0}]
  graph = problems.graph(times, [(0, 1)], output_bytes=[(100.0,)] * 2)
  return Problem(graph, problems.cluster([INF] * 2, kinds=["GPU", "CPU"]))


def _all_colocated():
  edges = [(i, j) for i in range(4) for j in range(i + 1, 4)]
  graph = problems.graph([1.0] * 4, edges, colocation=["all"] * 4)
  return Problem(graph, problems.cluster([INF] * 4))


def _unlike_gpus_in_a_one_way_ring():
  """Three kinds, unlike memories, and links in one direction only."""
  times = [{"K80": 9.0, "V100": 3.0, "CPU": 90.0}] * 10
  times[4] = {"CPU": 5.0}
  graph = problems.graph(
    times,
    [(0, 2), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8)],
    output_bytes=[(10.0,)] * 10,
    persistent_bytes=[5.0] * 10,
  )
  kinds = ["K80", "V100", "K80", "CPU"]
  links = [(0, 1), (1, 2), (2, 3), (3, 0)]
  cluster = problems.cluster(
    [60.0, 40.0, INF, INF], kinds, overhead=0.5, links=links
  )
  return Problem(graph, cluster)


def _no_links_at_all():
  edges = [(0, 1), (1, 2), (3, 4), (5, 6)]
  graph = problems.graph([2.0] * 8, edges)
  return Problem(graph, problems.cluster([INF] * 3, links=[]))


def _huge_tensors():
  """Petabytes: to move one takes years, and sums lose their units."""
  edges = [(i, j) for i in range(6) for j in range(i + 1, 6)]
  graph = problems.graph(
    [1e-3] * 6, edges, output_bytes=[(1e15,)] * 6, persistent_bytes=[1e15] * 6
  )
  return Problem(graph, problems.cluster([INF, 1e16], bandwidth=1e-3))


def _ops_that_gpus_lack():
  """Every other op of a chain has a CPU kernel only."""
  times = [{"CPU": 1.0} if i % 2 else {"GPU": 1.0} for i in range(12)]
  graph = problems.graph(times, [(i, i + 1) for i in range(11)])
  kinds = ["GPU", "GPU", "CPU"]
  return Problem(graph, problems.cluster([INF] * 3, kinds, latency=2.0))


def _names_with_odd_numbers():
  """Hashes of many digits, digits of other scripts, and numbers far apart."""
  digits = "9" * 40
  names = [
    f"model/lstm_layer_{digits}/a",
    f"model/lstm_layer_{digits}/b",
    f"model/mixed{digits}/a",
    f"model/step_{digits}/c",
    "model/step_٣/d",
    "model/step_1/e",
    "model/step_999999999/f",
    "//",
    f"gradients/model/{digits}/step_1/g",
  ]
  ops = [OpSpec(name, "Op", {"GPU": 2.0}, [4.0]) for name in names]
  edges = [(i, 0, i + 2) for i in range(len(ops) - 2)]
  return Problem(build_graph("g", ops, edges), problems.cluster([INF] * 2))


def _long_chain():
  count = 3000
  edges = [(i, i + 1) for i in range(count - 1)]
  graph = problems.graph([1.0] * count, edges)
  return Problem(graph, problems.cluster([INF] * 2, links=[(0, 1)]))


def _wide_fan():
  count = 400
  edges = [(0, i) for i in range(1, count)]
  edges += [(i, count) for i in range(1, count)]
  graph = problems.graph(
    [1.0] * (count + 1), edges, output_bytes=[(1.0,)] * (count + 1)
  )
  return Problem(graph, problems.cluster([INF] * 4, bandwidth=100.0))


PROBLEMS = {
  make.__name__[1:]: make
  for make in (
    _control_edges_and_no_outputs,
    _device_without_memory,
    _zero_costs_on_two_kinds,
    _all_colocated,
    _unlike_gpus_in_a_one_way_ring,
    _no_links_at_all,
    _huge_tensors,
    _ops_that_gpus_lack,
    _names_with_odd_numbers,
    _long_chain,
    _wide_fan,
  )
}

"""Two nearly independent halves of a graph, each on devices of its own."""

import itertools

import numpy as np
import pytest

from tests.testing import problems, split_steps
from tfplace.core import OpSpec, Problem, build_graph
from tfplace.core.budget import Budget
from tfplace.core.op_graph import subgraph
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search import annealing, halves
from tfplace.placers.search.annealing import AnnealingPlacer
from tfplace.placers.search.config import HalvesConfig, SearchConfig
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator


def towers(seed=0, count=2, width=3, depth=6):
  """Equal towers of `width` strands each, joined by an op at their ends."""
  rng = np.random.default_rng(seed)
  times = rng.integers(5, 20, (width, depth)).astype(float)
  ops, edges = [], []
  for tower in range(count):
    first = len(ops)
    for strand, level in itertools.product(range(width), range(depth)):
      name = f"tower_{tower}/strand_{strand}/op_{level}"
      ops.append(OpSpec(name, "Op", {"GPU": times[strand, level]}, (30.0,)))
      here = first + strand * depth + level
      if level:
        edges += [(here - 1, 0, here)]
        near = first + (strand + 1) % width * depth + level - 1
        edges += [(near, 0, here)]
  head = len(ops)
  ops.append(OpSpec("head", "Op", {"GPU": 1.0}, (1.0,)))
  last = range(depth - 1, head, depth)
  edges += [(i, 0, head) for i in last]
  return build_graph("towers", ops, edges)


def search(problem, evaluations=400, seed=0, large=1):
  placer = AnnealingPlacer(SearchConfig(coarse_groups=large), ("single",))
  budget = Budget(60.0, evaluations)
  return placer.place(problem, Simulator(problem), budget, seed)


def test_each_tower_gets_devices_of_its_own():
  graph = towers()
  problem = Problem(graph, problems.cluster([np.inf] * 4, bandwidth=10.0))
  groups, simulator = GroupGraph(problem), Simulator(problem)
  tracker = Tracker("t", problem, simulator, Budget(60.0, 400))
  searched = []

  def place(part, budget):
    searched.append(part)
    return AnnealingPlacer().place(part, Simulator(part), budget, 0)

  found = halves.search_halves(tracker, groups, 0, place, HalvesConfig())
  tower = [name.partition("/")[0] for name in graph.names]
  used = {
    t: {int(d) for d, own in zip(found, tower, strict=True) if own == t}
    for t in ("tower_0", "tower_1")
  }
  assert not used["tower_0"] & used["tower_1"]
  assert [len(part.cluster.devices) for part in searched] == [2] * len(searched)


def test_twins_are_searched_once():
  graph = towers()
  whole = np.arange(graph.num_ops - 1).reshape(2, -1)
  parts = [subgraph(graph, ops) for ops in whole]
  cluster = problems.cluster([np.inf] * 2)
  one, other = (Problem(part, cluster) for part in parts)
  assert halves._are_twins(one, other)
  unlike = Problem(subgraph(towers(seed=1), whole[0]), cluster)
  assert not halves._are_twins(one, unlike)
  slower = problems.cluster([np.inf] * 2, bandwidth=0.5)
  assert not halves._are_twins(one, Problem(parts[1], slower))


def test_a_chain_has_no_halves():
  graph = problems.graph([5.0] * 40, [(i, i + 1) for i in range(39)])
  problem = Problem(graph, problems.cluster([np.inf] * 4))
  tracker = Tracker("t", problem, Simulator(problem), Budget(60.0, 400))

  def place(part, budget):
    raise AssertionError("nothing is to be searched")

  assert (
    halves.search_halves(tracker, GroupGraph(problem), 0, place, HalvesConfig())
    is None
  )
  assert tracker.evaluations == 0


@pytest.mark.parametrize("count", [2, 3])
def test_three_devices_are_not_halved(count):
  problem = Problem(towers(), problems.cluster([np.inf] * count))
  tracker = Tracker("t", problem, Simulator(problem), Budget(60.0, 400))
  found = halves.search_halves(
    tracker, GroupGraph(problem), 0, None, HalvesConfig()
  )
  assert found is None


@pytest.mark.parametrize("limit, halved", [(0.5, True), (0.1, False)])
def test_halves_of_a_cut_are_nearly_independent(limit, halved):
  # 90 bytes from one tower to the head, beside 216 us of work in each.
  problem = Problem(towers(), problems.cluster([np.inf] * 4, bandwidth=3.0))
  tracker = Tracker("t", problem, Simulator(problem), Budget(60.0, 400))

  def place(part, budget):
    return AnnealingPlacer().place(part, Simulator(part), budget, 0)

  config = HalvesConfig(cut_traffic=limit)
  found = halves.search_halves(tracker, GroupGraph(problem), 0, place, config)
  assert (found is not None) == halved


def test_two_microbatches_on_four_devices_are_halves():
  graph, at = split_steps.split_graph(layers=6, microbatches=2, weight=10.0)
  problem = Problem(graph, problems.cluster([np.inf] * 4, bandwidth=100.0))
  tracker = Tracker("t", problem, Simulator(problem), Budget(60.0, 400))

  def place(part, budget):
    return AnnealingPlacer().place(part, Simulator(part), budget, 0)

  found = halves.search_halves(
    tracker, GroupGraph(problem), 0, place, HalvesConfig()
  )
  devices = GroupGraph(problem).expand(found)
  for i in range(2):
    used = {int(devices[at["forward", i, j]]) for j in range(6)}
    assert used <= {2 * i, 2 * i + 1}


def test_a_large_search_keeps_its_evaluations_and_does_not_get_worse():
  problem = Problem(towers(), problems.cluster([np.inf] * 4, bandwidth=10.0))
  halved = search(problem)
  again = search(problem)
  assert (halved.placement.devices == again.placement.devices).all()
  assert halved.evaluations <= 440
  whole = search(problem, large=10**6)
  step_us = halved.evaluation.step_time_us
  assert step_us <= 1.05 * whole.evaluation.step_time_us


def test_a_subgraph_has_the_costs_and_edges_of_its_ops():
  problem = problems.random_problem(11)
  graph = problem.graph
  ops = np.arange(0, graph.num_ops, 2)
  part = subgraph(graph, ops)
  assert part.names == tuple(graph.names[i] for i in ops)
  for rank, op in enumerate(ops.tolist()):
    a, b = graph.output_offsets[op : op + 2]
    c, d = part.output_offsets[rank : rank + 2]
    assert (part.output_bytes[c:d] == graph.output_bytes[a:b]).all()
  kept = {
    (graph.names[a], int(o), graph.names[b])
    for a, o, b in zip(
      graph.edge_src, graph.edge_output, graph.edge_dst, strict=True
    )
    if a % 2 == 0 and b % 2 == 0
  }
  assert kept == {
    (part.names[a], int(o), part.names[b])
    for a, o, b in zip(
      part.edge_src, part.edge_output, part.edge_dst, strict=True
    )
  }


class Silent:
  """A proposer that proposes what it is given and rates nothing."""

  labels = ()

  def propose(self, devices, number, rng):
    return devices


@pytest.mark.parametrize(
  "proposer, evaluations, halved",
  [(None, None, True), (Silent(), None, False), (Silent(), 400, True)],
)
def test_a_guided_search_does_not_halve(
  proposer, evaluations, halved, monkeypatch
):
  problem = Problem(towers(), problems.cluster([np.inf] * 4, bandwidth=10.0))
  groups, asked = GroupGraph(problem), []
  monkeypatch.setattr(annealing, "search_halves", lambda *_: asked.append(1))
  seconds = 0.5 if evaluations is None else 60.0
  budget = Budget(seconds, evaluations)
  tracker = Tracker("t", problem, Simulator(problem), budget)
  start = groups.expand(groups.nearest(np.zeros(groups.num_groups, int)))
  config = SearchConfig(coarse_groups=1, halves_s=0.0)
  annealing.improve(tracker, groups, [start], 0, config, proposer)
  assert bool(asked) == halved

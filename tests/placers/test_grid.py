"""Data parallelism, pipelines and their product, of steps in microbatches."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.testing import problems, split_steps
from tfplace.core import (
  Cluster,
  Device,
  Link,
  OpSpec,
  Placement,
  Problem,
  build_graph,
)
from tfplace.core.paths import transfers
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import place
from tfplace.placers.registry import MICROBATCHED, READY, classical
from tfplace.placers.rules.stages import balanced_stages


def placed(strategy, graph, cluster):
  problem = Problem(graph, cluster)
  result = place(problem, strategy, budget_s=20)
  Placement(problem, result.placement.devices)
  return result


def devices(count, **fields):
  return problems.cluster([np.inf] * count, bandwidth=100.0, **fields)


def test_data_parallel_gives_each_microbatch_a_device():
  graph, at = split_steps.split_graph(layers=4, microbatches=4)
  result = placed("data_parallel", graph, devices(4))
  where = result.placement.devices
  for i in range(4):
    mine = {
      where[at[kind, i, j]] for kind in ("forward", "back") for j in range(4)
    }
    assert mine == {i}
  assert sorted(where[at["var", j]] for j in range(4)) == [0, 1, 2, 3]
  assert result.evaluation.step_time_us < 1000  # of 3200 on one device


def test_more_microbatches_than_devices_are_in_blocks():
  graph, at = split_steps.split_graph(layers=2, microbatches=6)
  where = placed("data_parallel", graph, devices(3)).placement.devices
  assert [where[at["back", i, 0]] for i in range(6)] == [0, 0, 1, 1, 2, 2]


def test_less_microbatches_than_devices_use_as_many_devices():
  graph, at = split_steps.split_graph(layers=4, microbatches=2)
  where = placed("data_parallel", graph, devices(4)).placement.devices
  assert set(where.tolist()) == {0, 1}
  assert sorted(where[at["var", j]] for j in range(4)) == [0, 0, 1, 1]


def test_a_replica_adds_its_gradients_before_it_sends_them():
  # Of 8 gradients on 4 devices, 3 sums of 2 are sent; the variable is sent to 3
  # devices. Added from left to right, the sum also goes from the last device to
  # the variable.
  for share, sent in (((4,), 6), ((), 7)):
    graph, at = split_steps.split_graph(
      layers=1, microbatches=8, weight=20000.0, devices=share
    )
    result = placed("data_parallel", graph, devices(4))
    where = result.placement.devices
    assert [where[at["add", i, 0]] for i in (1, 3, 5, 7)] == [0, 1, 2, 3]
    assert result.evaluation.bytes_moved == sent * 20000.0


def test_gradients_of_one_microbatch_are_added_at_the_variable():
  for share in ((4,), ()):
    graph, at = split_steps.split_graph(layers=1, microbatches=4, devices=share)
    result = placed("data_parallel", graph, devices(4))
    where = result.placement.devices
    home = where[at["var", 0]]
    assert {where[at["add", i, 0]] for i in (1, 2, 3)} == {home}
    assert result.evaluation.bytes_moved == 6 * 1000.0


def on_hosts(hosts, per_host):
  """Devices `/job:worker/replica:0/task:h/device:GPU:i`."""
  names = [
    f"/job:worker/replica:0/task:{h}/device:GPU:{i}"
    for h, i in itertools.product(range(hosts), range(per_host))
  ]
  links = [Link(a, b, 100.0) for a, b in itertools.permutations(names, 2)]
  return Cluster("hosts", tuple(Device(n, "GPU") for n in names), tuple(links))


def network_bytes(problem, where):
  """Bytes that cross between hosts."""
  host = problem.cluster.hosts[where]
  sent, _ = transfers(problem.graph, where)
  graph = problem.graph
  crosses = host[graph.edge_src[sent]] != host[graph.edge_dst[sent]]
  return graph.edge_bytes[sent][crosses].sum()


@pytest.mark.parametrize("microbatches", [6, 12])
@pytest.mark.parametrize("hosts, per_host", [(2, 3), (3, 2)])
def test_weights_and_gradients_cross_a_network_once(
  microbatches, hosts, per_host
):
  # R devices on H hosts: each weight and each gradient moves R - 1 times, H - 1
  # times of these between hosts.
  graph, at = split_steps.split_graph(
    layers=2, microbatches=microbatches, devices=(per_host,) * hosts
  )
  cluster = on_hosts(hosts, per_host)
  result = placed("data_parallel", graph, cluster)
  where, both = result.placement.devices, 2 * 2 * 1000.0
  count = hosts * per_host
  assert result.evaluation.bytes_moved == (count - 1) * both
  problem = result.placement.problem
  assert network_bytes(problem, where) == (hosts - 1) * both
  for host, j in itertools.product(range(hosts), range(2)):
    relay = where[at[f"relay_to_host_{host}/", j]]
    assert cluster.hosts[relay] == host
    if host == cluster.hosts[where[at["var", j]]]:
      assert relay == where[at["var", j]]


def test_relays_are_spread_over_the_devices_of_a_host():
  graph, at = split_steps.split_graph(layers=8, microbatches=4, devices=(2, 2))
  where = placed("data_parallel", graph, on_hosts(2, 2)).placement.devices
  away = [
    where[at[f"relay_to_host_{h}/", j]]
    for h, j in itertools.product(range(2), range(8))
    if where[at["var", j]] // 2 != h
  ]
  assert sorted(np.bincount(away)) == [2, 2, 2, 2]


def test_replicas_of_stages_add_what_they_have_first():
  # Two replicas, of 4 of 8 microbatches each: each layer's weight and gradient
  # are sent once. Activations and their gradients are sent at one border.
  graph, _ = split_steps.split_graph(layers=4, microbatches=8, devices=(4,))
  result = placed("hybrid", graph, devices(4))
  assert result.evaluation.bytes_moved == 4 * 2 * 1000.0 + 8 * 2 * 100.0


@pytest.mark.parametrize("strategy", ["data_parallel", "pipeline"])
def test_rows_of_the_batch_are_taken_where_the_batch_is(strategy):
  # A fed batch of 4000 bytes, of which each of 4 microbatches takes 1000.
  kinds = {"GPU": 1.0}
  ops = [OpSpec("data", "Placeholder", kinds, [4000.0])]
  edges = []
  for i in range(4):
    ops.append(OpSpec(f"rows_{i}", "Slice", kinds, [1000.0], microbatch=i))
    ops.append(
      OpSpec(f"use_{i}", "Op", {k: 100.0 for k in kinds}, [8.0], microbatch=i)
    )
    edges += [(0, 0, 1 + 2 * i), (1 + 2 * i, 0, 2 + 2 * i)]
  result = placed(strategy, build_graph("fed", ops, edges), devices(4))
  where = result.placement.devices
  assert {int(where[1 + 2 * i]) for i in range(4)} == {int(where[0])}
  if strategy == "data_parallel":
    assert {int(where[2 + 2 * i]) for i in range(4)} == {0, 1, 2, 3}
    assert result.evaluation.bytes_moved == 3 * 1000.0


@pytest.mark.parametrize("layer", [True, False])
def test_a_pipeline_keeps_a_layer_on_a_device(layer):
  graph, at = split_steps.split_graph(layers=8, microbatches=4, layer=layer)
  where = placed("pipeline", graph, devices(4)).placement.devices
  for i, j in itertools.product(range(4), range(8)):
    for kind in ("forward", "back"):
      assert where[at[kind, i, j]] == j // 2
    assert where[at["var", j]] == where[at["update", j]] == j // 2


def test_a_step_that_is_whole_has_a_pipeline_too():
  graph, at = split_steps.split_graph(layers=6, microbatches=1)
  where = placed("pipeline", graph, devices(3)).placement.devices
  assert [where[at["forward", 0, j]] for j in range(6)] == [0, 0, 1, 1, 2, 2]


def test_the_product_has_replicas_of_stages():
  graph, at = split_steps.split_graph(layers=4, microbatches=4)
  where = placed("hybrid", graph, devices(4)).placement.devices
  stages = [
    {where[at["back", i, j]] for i in range(4) for j in half}
    for half in ((0, 1), (2, 3))
  ]
  replicas = [
    {where[at["back", i, j]] for i in half for j in range(4)}
    for half in ((0, 1), (2, 3))
  ]
  assert [len(s) for s in (*stages, *replicas)] == [2, 2, 2, 2]
  assert not stages[0] & stages[1]
  assert not replicas[0] & replicas[1]


@pytest.mark.parametrize("strategy", MICROBATCHED)
def test_memory_limits_hold(strategy):
  graph, _ = split_steps.split_graph(layers=8, microbatches=4)
  peaks = placed(strategy, graph, devices(4)).evaluation.peak_memory_bytes
  limit = 0.95 * peaks["d1"]
  tight = problems.cluster([np.inf, limit, np.inf, np.inf], bandwidth=100.0)
  result = placed(strategy, graph, tight)
  assert result.evaluation.feasible
  assert result.evaluation.peak_memory_bytes["d1"] <= limit
  with pytest.raises(InfeasibleError, match=r"needs .* too few"):
    placed(strategy, graph, problems.cluster([900.0] * 4, bandwidth=100.0))


@pytest.mark.parametrize("strategy", ["data_parallel", "hybrid"])
def test_a_whole_step_is_refused_by_name(strategy):
  graph, _ = split_steps.split_graph(microbatches=1)
  with pytest.raises(TfplaceError, match=f"{strategy}.*'split' is not"):
    placed(strategy, graph, devices(4))


def test_the_product_says_what_it_needs():
  graph, _ = split_steps.split_graph()
  with pytest.raises(TfplaceError, match=r"four devices .* 'c' has 3"):
    placed("hybrid", graph, devices(3))


def test_missing_links_leave_what_they_allow():
  graph, _ = split_steps.split_graph(layers=4, microbatches=2)
  for strategy in ("data_parallel", "pipeline"):
    alone = problems.cluster([np.inf] * 2, links=[])
    result = placed(strategy, graph, alone)
    assert len(set(result.placement.devices.tolist())) == 1


@pytest.mark.parametrize("seed", range(30))
def test_any_graph_may_say_which_microbatch_its_ops_are_of(seed):
  problem = problems.random_problem(seed)
  rng = np.random.default_rng(seed)
  number = rng.integers(-1, 4, problem.graph.num_ops).astype(np.int32)
  number[0] = 3
  graph = dataclasses.replace(problem.graph, microbatch=number)
  for strategy in MICROBATCHED:
    try:
      result = placed(strategy, graph, problem.cluster)
    except InfeasibleError:
      continue  # what is left on a device without memory
    except TfplaceError as error:
      assert "needs four devices" in str(error)
      continue
    assert result.evaluation.feasible


def test_a_graph_without_ops_is_a_pipeline():
  result = placed("pipeline", problems.graph([], []), devices(2))
  assert result.evaluation.step_time_us == 0


def test_they_compete_where_a_step_is_split_and_only_there():
  for microbatches, names in ((1, set()), (2, set(MICROBATCHED))):
    graph, _ = split_steps.split_graph(microbatches=microbatches)
    problem = Problem(graph, devices(4))
    assert set(classical(problem)) & set(MICROBATCHED) == names
    result = place(problem, "auto", budget_s=20, max_evaluations=400)
    assert {r.strategy for r in result.tried} & set(MICROBATCHED) == names
  assert not set(READY) & set(MICROBATCHED)


def cuts(count, stages):
  """Every way to cut so many layers into so many stages: pairs of ends."""
  for borders in itertools.combinations(range(1, count), stages - 1):
    yield list(itertools.pairwise([0, *borders, count]))


def ends_of(stage):
  """The ends of stages that were found."""
  borders = (np.flatnonzero(np.diff(stage)) + 1).tolist()
  return list(itertools.pairwise([0, *borders, len(stage)]))


@pytest.mark.parametrize("seed", range(20))
def test_stages_are_balanced_as_well_as_can_be(seed):
  rng = np.random.default_rng(seed)
  count, stages = int(rng.integers(1, 9)), int(rng.integers(1, 5))
  work = rng.integers(1, 20, count).astype(float)
  cut = rng.integers(0, 25, count - 1).astype(float)
  held = rng.integers(1, 20, count).astype(float)
  used = min(stages, count)

  def slowest(ends):
    return max(max(work[a:b].sum(), cut[a - 1] if a else 0.0) for a, b in ends)

  def fullest(ends):
    return max(held[a:b].sum() for a, b in ends)

  found = balanced_stages(work, cut, stages)
  assert (np.diff(found) >= 0).all()
  assert set(found.tolist()) == set(range(used))
  best = min(slowest(ends) for ends in cuts(count, used))
  assert slowest(ends_of(found)) == pytest.approx(best)
  least = min(fullest(ends) for ends in cuts(count, used))
  for most in (least, 1.3 * least):
    found = ends_of(balanced_stages(work, cut, stages, (held, most)))
    assert fullest(found) <= most
    best = min(
      slowest(ends) for ends in cuts(count, used) if fullest(ends) <= most
    )
    assert slowest(found) == pytest.approx(best)
  found = ends_of(balanced_stages(work, cut, stages, (held, 0.7 * least)))
  assert fullest(found) <= 1.5 * least  # nothing fits: nearly the least


def of_memory(num_bytes):
  """Two devices."""
  return problems.cluster([num_bytes] * 2, bandwidth=100.0)


def test_a_pipeline_keeps_to_the_memory_of_its_devices():
  graph, at = split_steps.split_graph(layers=4, microbatches=2)
  wide = graph.persistent_bytes.copy()
  wide[[at["var", 0], at["var", 1]]] = 10_000.0
  graph = dataclasses.replace(graph, persistent_bytes=wide)
  room = placed("pipeline", graph, of_memory(np.inf))
  held = np.bincount(room.placement.devices, wide, 2)
  assert held.max() >= 20_000  # layers 0 and 1 are one stage
  tight = placed("pipeline", graph, of_memory(18_000.0))
  assert tight.evaluation.feasible
  where = tight.placement.devices
  assert where[at["var", 0]] != where[at["var", 1]]

"""Rules for microbatches, on equal and unequal devices."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.testing import problems, split_steps
from tests.testing.clusters import linked
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph import Device, OpSpec, Placement, Problem, build_graph
from tfplace.graph.paths import transfers
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.registry import MICROBATCHED
from tfplace.placers.rules.device_grid import device_grids
from tfplace.placers.rules.exchanges import served_variables
from tfplace.placers.rules.stages import balanced_shares, balanced_stages


def placed(strategy, graph, cluster):
  problem = Problem(graph, cluster)
  result = place(problem, strategy, budget_s=20)
  Placement(problem, result.placement.devices)
  return result


def devices(count):
  return problems.cluster([np.inf] * count, bandwidth=100.0)


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


def test_a_layer_of_large_weights_runs_whole_on_one_device():
  weights = (1000.0, 1000.0, 80000.0, 1000.0)
  graph, at = split_steps.split_graph(num_bytes=4000.0, weight=weights)
  result = placed("layerwise", graph, devices(4))
  where = result.placement.devices
  used = [
    {where[at[kind, i, j]] for kind in ("forward", "back") for i in range(4)}
    for j in range(4)
  ]
  assert [len(of) for of in used] == [4, 4, 1, 4]
  assert where[at["var", 2]] in used[2]
  other = placed("data_parallel", graph, devices(4))
  assert result.evaluation.step_time_us < other.evaluation.step_time_us / 1.3


def with_momentum(weights, microbatches):
  """A layer per variable, whose update takes a slot that is updated, too.

  A counter of microbatches belongs to no variable.
  """
  ops, edges, at = [], [], {}

  def add(name, inputs=(), size=0.0, held=0.0, us=0.0, of=None, beside=None):
    at[name] = len(ops)
    spec = OpSpec(
      *(name, "X", {"GPU": us}, (size,)),
      persistent_bytes=held,
      microbatch=of,
      colocation=beside,
    )
    ops.append(spec)
    edges.extend((at[source], 0, at[name]) for source in inputs)

  for j, size in enumerate(weights):
    for kind in ("weight", "slot"):
      add(f"{kind}_{j}", held=size, beside=f"{kind}_{j}")
      add(f"read_{kind}_{j}", [f"{kind}_{j}"], size, beside=f"{kind}_{j}")
    for i in range(microbatches):
      add(f"gradient_{i}_{j}", [f"read_weight_{j}"], size, us=10.0, of=i)
    gradients = [f"gradient_{i}_{j}" for i in range(microbatches)]
    add(f"sum_{j}", gradients, size)
    add(f"decay_{j}", [f"read_slot_{j}", f"sum_{j}"], size)
    add(f"assign_slot_{j}", [f"decay_{j}"], size, beside=f"slot_{j}")
    add(f"scale_{j}", [f"assign_slot_{j}"], size)
    add(f"assign_weight_{j}", [f"scale_{j}"], beside=f"weight_{j}")
  add("counter", held=8.0, beside="counter")
  add("count", ["counter", "sum_0"], beside="counter")
  return build_graph("momentum", ops, edges), at


def test_slots_serve_the_variable_whose_update_reads_them():
  graph, at = with_momentum((4.0, 2.0, 3.0), microbatches=2)
  problem = Problem(graph, devices(2))
  groups = GroupGraph.of(problem)
  (grid,) = device_grids(groups)
  served = served_variables(groups, grid.microbatch)
  wanted = np.arange(groups.num_groups)
  for j in range(3):
    of = problem.group_of[[at[f"slot_{j}"], at[f"weight_{j}"]]]
    wanted[of[0]] = of[1]
  assert served.tolist() == wanted.tolist()


def test_slots_may_be_beside_their_variables():
  graph, at = with_momentum((1000.0,) * 4, microbatches=4)
  where = placed("data_parallel", graph, devices(4)).placement.devices
  of = [where[at[f"weight_{j}"]] for j in range(4)]
  assert sorted(of) == [0, 1, 2, 3]
  assert [where[at[f"slot_{j}"]] for j in range(4)] == of
  assert [where[at[f"scale_{j}"]] for j in range(4)] == of


def test_without_slots_no_placement_is_proposed_twice():
  graph, _ = split_steps.split_graph(layers=4, microbatches=4)
  (grid,) = device_grids(GroupGraph(Problem(graph, devices(4))))
  assert len([*grid.placements(4, 1)]) == 1
  graph, _ = with_momentum((1000.0,) * 4, microbatches=4)
  (grid,) = device_grids(GroupGraph(Problem(graph, devices(4))))
  first, second = grid.placements(4, 1)
  assert (first != second).any()


def on_hosts(hosts, per_host):
  """Devices `/job:worker/replica:0/task:h/device:GPU:i`."""
  names = [
    f"/job:worker/replica:0/task:{h}/device:GPU:{i}"
    for h, i in itertools.product(range(hosts), range(per_host))
  ]
  return linked([Device(name, "GPU") for name in names], 100.0)


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


@pytest.mark.parametrize("layer", [True, False])
def test_a_pipeline_keeps_a_layer_on_a_device(layer):
  graph, at = split_steps.split_graph(layers=8, microbatches=4, layer=layer)
  where = placed("pipeline", graph, devices(4)).placement.devices
  for i, j in itertools.product(range(4), range(8)):
    for kind in ("forward", "back"):
      assert where[at[kind, i, j]] == j // 2
    assert where[at["var", j]] == where[at["update", j]] == j // 2


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


@pytest.mark.parametrize("seed", range(8))
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


def cuts(count, stages):
  """Every way to cut so many layers into so many stages: pairs of ends."""
  for borders in itertools.combinations(range(1, count), stages - 1):
    yield list(itertools.pairwise([0, *borders, count]))


def ends_of(stage):
  """The ends of stages that were found."""
  borders = (np.flatnonzero(np.diff(stage)) + 1).tolist()
  return list(itertools.pairwise([0, *borders, len(stage)]))


@pytest.mark.parametrize("seed", range(8))
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


FAST, SLOW = "GPU-fast", "GPU-slow"


def step(slower=2.0, kinds=(FAST, SLOW), **sizes):
  """A step in microbatches that takes `slower` times as long on slow GPUs."""
  graph, at = split_steps.split_graph(**sizes)
  fast = graph.time_us["GPU"]
  times = {kind: fast * (slower if kind == SLOW else 1.0) for kind in kinds}
  return dataclasses.replace(graph, time_us=times), at


def unequal(kinds, memories=None):
  memories = memories or [np.inf] * len(kinds)
  return problems.cluster(memories, kinds, bandwidth=1000.0)


def test_devices_get_microbatches_by_speed():
  # A device of half the speed takes 2 of 6 microbatches of 1600 us.
  graph, at = step(layers=8, microbatches=6)
  result = placed("data_parallel", graph, unequal([FAST, SLOW]))
  where = result.placement.devices
  assert sorted(where[at["back", i, 0]] for i in range(6)) == [0] * 4 + [1] * 2
  # A device alone takes 9600, and halves would take 9600 on the slow one.
  assert 6400 < result.evaluation.step_time_us < 7000


def test_stages_get_layers_by_speed():
  # 10 layers on devices of speeds 1, 1 and 1/2: the slow one takes fewest.
  graph, at = step(layers=10, microbatches=4)
  kinds = [FAST, SLOW, FAST]
  where = placed("pipeline", graph, unequal(kinds)).placement.devices
  layers = [
    sum(where[at["forward", 0, j]] == device for j in range(10))
    for device in range(3)
  ]
  assert layers == [4, 2, 4]


@pytest.mark.parametrize("layers", [4, 6])
def test_a_hybrid_groups_alike_devices(layers):
  graph, at = step(layers=layers, microbatches=6)
  kinds = [FAST, SLOW, FAST, SLOW]
  where = placed("hybrid", graph, unequal(kinds)).placement.devices
  replicas = [
    {int(where[at["back", i, j]]) for j in range(layers)} for i in range(6)
  ]
  stages = [
    {int(where[at["back", i, j]]) for i in range(6)} for j in range(layers)
  ]
  alike = ({0, 2}, {1, 3})
  assert all(x in alike for x in replicas) or all(x in alike for x in stages)


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_near_the_best(seed):
  rng = np.random.default_rng(seed)
  count, replicas = int(rng.integers(1, 7)), int(rng.integers(1, 4))
  slower = rng.uniform(1, 4, replicas)
  time_us = rng.integers(1, 20, count)[:, np.newaxis] * slower
  unlimited = np.full((replicas, 1), np.inf)
  (found,) = balanced_shares(time_us, np.ones((count, 1)), unlimited)

  def longest(share):
    at = time_us[np.arange(count), list(share)]
    return np.bincount(share, at, replicas).max()

  best = min(map(longest, itertools.product(range(replicas), repeat=count)))
  # The longest-first rule on machines of different speeds: Friesen (1987).
  assert longest(found) <= 5 / 3 * best + 1e-9


def test_shares_keep_to_memory_where_time_alone_does_not():
  time_us = np.array([[1.0, 3.0]] * 4)
  held, memory = np.full((4, 1), 10.0), np.array([[20.0], [100.0]])
  fastest, within = balanced_shares(time_us, held, memory)
  assert fastest.tolist() == [0, 0, 0, 1]
  assert within.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("strategy", ["data_parallel", "pipeline", "layerwise"])
def test_a_microbatch_may_have_a_variable_that_a_sum_reads(strategy):
  """With keep_together, a variable may share a group with a microbatch."""
  time_us, size = {"GPU": 1.0}, [8.0]
  ops = [
    OpSpec("variable", "X", time_us, size, 8.0, microbatch=0),
    OpSpec("first", "X", time_us, size, microbatch=0),
    OpSpec("last", "X", time_us, size, microbatch=1),
    OpSpec("sum", "X", time_us, size),
  ]
  graph = build_graph("g", ops, [(0, 0, 1), (0, 0, 3), (1, 0, 2)])
  # On one device or two, three ops follow one another.
  assert placed(strategy, graph, devices(2)).evaluation.step_time_us >= 3

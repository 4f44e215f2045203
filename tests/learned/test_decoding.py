"""The compiled decoder: what it sees, and what it makes of it."""

import numpy as np

from tests.testing.policy_problems import (
  UniformPolicy,
  equal_head,
  gpus,
  problem_of,
  random_graph,
)
from tfplace import Simulator
from tfplace.graph import OpSpec, build_graph
from tfplace.graph.budget import Budget
from tfplace.learned.decisions import group_decisions
from tfplace.learned.ordered.decoding import (
  CUT_ABOVE,
  END_ABOVE,
  FEATURES,
  Head,
  decode,
)
from tfplace.learned.ordered.placer import OrderedPlacer
from tfplace.learned.ordered.tables import partial_tables
from tfplace.placers.tracker import Tracker


def linear(count, feature, slope):
  """A head that looks at one feature."""
  head = equal_head(count)
  head.slope[:, feature] = slope
  return head


def tables_of(graph, cluster, size=None):
  return partial_tables(group_decisions(problem_of(graph, cluster), size))


def noise_of(tables, number=1, seed=0):
  rng = np.random.default_rng(seed)
  shape = (number, *tables.allowed.shape)
  return rng.gumbel(size=shape).astype(np.float32)


def decode_all(tables, head, noise):
  free = np.full(noise.shape[:2], -1, np.int32)
  return decode(tables, head, noise, free, keeps=False).choices


def ops(times, edges=(), num_bytes=0.0, **more):
  specs = [
    OpSpec(f"op{i}", "MatMul", {"GPU": t}, [num_bytes], **more)
    for i, t in enumerate(times)
  ]
  return build_graph("by_hand", specs, [(a, 0, b) for a, b in edges])


def test_earliest_end_is_greedy_list_scheduling():
  # In order 8, 3, 3, 2 (overhead 1 each): 8 on one device; 3 and 3 on the
  # other, which is free at 8; the first is free at 9; so 2 follows the 3s.
  tables = tables_of(ops([8.0, 3.0, 3.0, 2.0]), gpus(2))
  head = linear(4, END_ABOVE, -1.0)
  (choice,) = decode_all(tables, head, np.zeros((1, 4, 2), np.float32))
  assert choice.tolist() == [0, 1, 1, 1]


def test_least_traffic_keeps_a_chain_on_one_device():
  tables = tables_of(
    ops([5.0] * 6, [(i, i + 1) for i in range(5)], 1e6), gpus(3)
  )
  head = linear(6, CUT_ABOVE, -100.0)
  (choice,) = decode_all(tables, head, noise_of(tables))
  assert len(set(choice.tolist())) == 1


def test_transfers_and_clocks_of_a_chain_are_as_simulated():
  # 10 us, 4,000 bytes at 4,000 B/us and 2 us, 20 us: the third op, of 5 us,
  # could start at 10 + 3 + 20 = 33 where the second is, and 3 later elsewhere.
  graph = ops([10.0, 20.0, 5.0], [(0, 1), (1, 2)], 4000.0)
  tables = tables_of(graph, gpus(2))
  forced = np.array([[0, 1, 0]], np.int32)
  zero = np.zeros((1, 3, 2), np.float32)
  samples = decode(tables, equal_head(3), zero, forced, keeps=True)
  ideal = tables.ideal_us
  end = samples.observed[0, 2, :, END_ABOVE] * ideal
  # An op's launch gap keeps device 1 until 34: ends at 36 + 6, or at 34 + 6.
  np.testing.assert_allclose(end, [2.0, 0.0], atol=1e-4)
  simulated = Simulator(problem_of(graph, gpus(2))).run(forced)
  assert simulated.step_time_us[0] == 10 + 3 + 20 + 3 + 5


def test_what_is_forced_is_taken_and_seen():
  tables = tables_of(random_graph(40, seed=1), gpus(4), 12)
  count = len(tables.allowed)
  forced = (np.arange(count, dtype=np.int32) % 4)[None]
  samples = decode(
    tables, equal_head(count), noise_of(tables), forced, keeps=True
  )
  assert (samples.choices == forced).all()
  assert samples.observed.shape == (1, count, 4, FEATURES)
  assert np.isfinite(samples.observed).all()
  assert np.abs(samples.observed).max() <= 4.0


def test_devices_are_interchangeable():
  tables = tables_of(random_graph(60, seed=2), gpus(4), 20)
  rng = np.random.default_rng(0)
  count = len(tables.allowed)
  shapes = ((count, 8), (count, FEATURES), (FEATURES, 8), (8, 4), (4,), (4,))
  head = Head(*(rng.normal(size=s).astype(np.float32) for s in shapes))
  noise, rename = noise_of(tables, 5), np.array([2, 0, 3, 1])
  first = decode_all(tables, head, noise)
  renamed = np.empty_like(noise)
  renamed[..., rename] = noise
  assert (decode_all(tables, head, renamed) == rename[first]).all()


def test_no_decision_goes_where_it_has_no_kernel():
  graph = random_graph(40, seed=3, cpu_only=True)
  tables = tables_of(graph, gpus(2, cpu=True))
  chosen = decode_all(
    tables, equal_head(len(tables.allowed)), noise_of(tables, 8)
  )
  assert tables.allowed[np.arange(len(tables.allowed)), chosen].all()
  assert (~tables.allowed[:, :2]).any()  # some run on the CPU only


def test_a_full_device_is_left_out():
  # Six variables of 400 bytes on three devices of 1,000: two on each.
  graph = ops([1.0] * 6, persistent_bytes=400.0)
  tables = tables_of(graph, gpus(3, memory_bytes=1000.0))
  for chosen in decode_all(tables, equal_head(6), noise_of(tables, 3)):
    assert np.bincount(chosen).tolist() == [2, 2, 2]


def best_of(problem, seed, **given):
  placer = OrderedPlacer(**{"samples": 60, **given})
  tracker = Tracker("ordered", problem, Simulator(problem), Budget(60.0))
  rng = np.random.default_rng(seed)
  placer._propose(UniformPolicy(16), tracker, rng)
  return tracker.result()


def test_samples_change_what_they_are_given():
  problem = problem_of(random_graph(50, 4), gpus(3))
  rng = np.random.default_rng(0)
  start = rng.integers(0, 3, problem.num_groups)[problem.group_of]
  (given,) = Simulator(problem).evaluate(start[None].astype(np.int32))
  found = best_of(problem, 0, start=start[None])
  assert found.history[0].step_time_us == given.step_time_us
  assert found.evaluation.step_time_us < given.step_time_us
  few = best_of(problem, 0, start=start[None], samples=1)
  assert (few.placement.devices == start).mean() > 0.5
  again = best_of(problem, 0, start=start[None]).placement.devices
  assert (again == found.placement.devices).all()
  other = best_of(problem, 1, start=start[None]).placement.devices
  assert (other != found.placement.devices).any()

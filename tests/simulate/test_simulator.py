"""`Simulator`: checks, batches, threads, processes, invariances."""

import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import pathlib
import pickle

import numba
import numpy as np
import pytest

from tests.testing import random_problems as cases
from tfplace.errors import PlacementError
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator, jit
from tfplace.simulate import simulator as batch


def large_case(seed=0, num_ops=300, num_placements=200):
  rng = np.random.default_rng(seed)
  problem = Problem(
    cases.random_graph(rng, num_ops, False), cases.random_cluster(rng, 4, False)
  )
  rows = [cases.random_placement(rng, problem) for _ in range(num_placements)]
  return problem, np.stack(rows)


def line(num_devices=2):
  """a -> b, and only d0 -> d1 linked; b cannot run on a CPU, a on a GPU."""
  ops = [
    OpSpec("a", "Op", {"GPU": 1.0}, [1.0]),
    OpSpec("b", "Op", {"GPU": 1.0, "CPU": 1.0}, [1.0], colocation=None),
    OpSpec("c", "Op", {"GPU": 1.0}, colocation="g"),
    OpSpec("d", "Op", {"GPU": 1.0}, colocation="g"),
  ]
  devices = (Device("d0", "GPU"), Device("d1", "GPU"), Device("d2", "CPU"))
  links = (Link("d0", "d1", 1.0), Link("d1", "d2", 1.0))
  graph = build_graph("g", ops, [(0, 0, 1)])
  return Problem(graph, Cluster("c", devices, links))


@pytest.mark.parametrize(
  "devices, named",
  [
    ([2, 1, 0, 0], ["'a'", "d2", "CPU"]),
    ([0, 2, 0, 0], ["'a'", "'b'", "d0", "d2", "link"]),
    ([0, 1, 0, 1], ["'c'", "'d'", "'g'"]),
    ([0, 3, 0, 0], ["'b'", "3"]),
    ([0, -1, 0, 0], ["'b'", "-1"]),
    ([0, 0, 0], ["(3,)", "4"]),
  ],
)
def test_evaluate_names_what_is_wrong(devices, named):
  with pytest.raises(PlacementError) as error:
    Simulator(line()).evaluate(np.array([devices], np.int32))
  assert all(name in str(error.value) for name in named), error.value


def test_run_gives_infinity_where_evaluate_would_raise():
  result = Simulator(line()).run(
    np.array([[2, 1, 0, 0], [0, 2, 0, 0], [0, 1, 0, 0]])
  )
  # a: 0-1, its byte 1-2; b: 2-3. c and d on d0 after a: 1-2, 2-3.
  assert result.step_time_us.tolist() == [np.inf, np.inf, 3.0]
  assert result.feasible.tolist() == [False, False, True]


def test_a_batch_equals_its_rows_on_any_number_of_threads():
  problem, rows = large_case()
  assert rows.size * 2 > batch.MIN_PARALLEL_SIZE
  one_by_one = [Simulator(problem).run(row) for row in rows]
  for threads in (1, 2, 5):
    together = Simulator(problem, threads).run(rows)
    for field in batch.Batch._fields:
      expected = np.concatenate([getattr(one, field) for one in one_by_one])
      assert np.array_equal(getattr(together, field), expected), field


@pytest.mark.parametrize("threads", [1, 2])
def test_starts_of_a_batch_are_those_of_each_schedule(threads):
  problem, rows = large_case(num_placements=100)
  simulator = Simulator(problem, num_threads=threads)
  starts = np.full(rows.shape, np.nan)
  found = simulator.run(rows, starts=starts)
  assert (found.step_time_us == simulator.run(rows).step_time_us).all()
  for row in (0, 57, 99):
    expected = simulator.schedule(rows[row]).op_start_us
    assert starts[row].tolist() == expected.tolist()


def test_one_simulator_serves_many_threads():
  problem, rows = large_case()
  simulator = Simulator(problem)
  expected = simulator.run(rows).step_time_us
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda _: simulator.run(rows), range(8)))
  assert all(np.array_equal(r.step_time_us, expected) for r in results)


def run_rows(simulator, rows):
  return simulator.run(rows).step_time_us


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_used_simulator_goes_to_other_processes(method):
  problem, rows = large_case()
  simulator = Simulator(problem)
  expected = simulator.run(rows).step_time_us
  context = multiprocessing.get_context(method)
  with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
    result = pool.submit(run_rows, simulator, rows).result(timeout=60)
  assert np.array_equal(result, expected)


def test_arguments_are_not_changed_and_may_be_read_only():
  problem, rows = large_case(num_placements=2)
  rows.setflags(write=False)
  before = rows.copy()
  Simulator(problem).run(rows)
  assert np.array_equal(rows, before)
  Simulator(problem).run(np.asfortranarray(rows.astype(np.int64)))


def test_names_do_not_matter():
  problem, rows = large_case(num_placements=3)
  graph, cluster = problem.graph, problem.cluster
  renamed = dataclasses.replace(
    graph, names=tuple(f"x{hash(n)}" for n in graph.names)
  )
  new = {d.name: f"device {i * 7 % 5}" for i, d in enumerate(cluster.devices)}
  devices = tuple(
    dataclasses.replace(d, name=new[d.name]) for d in cluster.devices
  )
  links = tuple(
    dataclasses.replace(
      link,
      src=new[link.src],
      dst=new[link.dst],
      channel=link.channel and f"{link.channel}!",
    )
    for link in cluster.links
  )
  other = Problem(renamed, Cluster("other", devices, links))
  expected, actual = Simulator(problem).run(rows), Simulator(other).run(rows)
  assert all(
    np.array_equal(a, e) for a, e in zip(actual, expected, strict=True)
  )


def test_no_place_for_compiled_code_is_a_warning(monkeypatch, caplog):
  jit._warn_of_no_cache.cache_clear()

  real = jit.numba.njit

  def njit(*args, **options):
    if options.get("cache"):
      raise RuntimeError("cannot cache function: no locator available")
    return real(*args, **options)

  monkeypatch.setattr(jit.numba, "njit", njit)
  for _ in range(2):
    assert jit.kernel(lambda x: x + 1)(2) == 3
  assert caplog.text.count("set NUMBA_CACHE_DIR") == 1


@pytest.mark.parametrize("rows", [[[0, 0, 0]], [0], ["d0"]])
def test_nested_lists_are_refused_with_what_is_expected(rows):
  with pytest.raises(
    PlacementError, match=r"\[batch, 4\] or Placements"
  ) as error:
    Simulator(line()).evaluate(rows)
  assert repr(rows[0]) in str(error.value)


_KERNEL = """
from tfplace.simulate.jit import kernel

@kernel
def fill(values):
  values[0] = 1.0
"""


def test_code_of_an_earlier_version_is_compiled_anew(tmp_path, monkeypatch):
  (tmp_path / "kept_kernel.py").write_text(_KERNEL)
  monkeypatch.syspath_prepend(tmp_path)
  module = importlib.import_module("kept_kernel")
  module.fill(np.zeros(1))
  folder = pathlib.Path(module.fill.stats.cache_path)
  (index,) = folder.glob("kept_kernel.fill*.nbi")
  gone = b"cno_such_module\nType\n."  # a type that is no longer there
  index.write_bytes(pickle.dumps(numba.__version__) + gone)
  values = np.zeros(1)
  importlib.reload(module).fill(values)
  assert values[0] == 1.0

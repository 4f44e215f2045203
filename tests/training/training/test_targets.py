"""Placements that training starts from: found once, and simplified."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import chains_task, config_of
from tfplace import Simulator, core
from tfplace.core.budget import Budget
from tfplace.errors import InfeasibleError
from tfplace.learned.config import TrainConfig
from tfplace.learned.decisions import group_decisions
from tfplace.learned.train import targets
from tfplace.learned.train.trainer import Trainer
from tfplace.placers.registry import get_placer


@pytest.fixture(autouse=True)
def few_evaluations(monkeypatch):
  monkeypatch.setattr(targets, "_SEARCHES", (50, 400))


def changes(problem, size=None, **config):
  decisions = group_decisions(problem, size)
  simulator = Simulator(problem)
  return targets.change_tasks(decisions, simulator, TrainConfig(**config))


def imitated(problem, size=None, **config):
  decisions = group_decisions(problem, size)
  config = TrainConfig(strategy="gdp", **config)
  return targets.imitation_task(decisions, Simulator(problem), config)


def test_tasks_change_what_rules_and_searches_find():
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  tasks = changes(problem)
  assert 2 <= len(tasks) <= 3
  assert len({task.decisions.base.tobytes() for task in tasks}) == len(tasks)
  times = Simulator(problem).run(np.stack([t.decisions.base for t in tasks]))
  for task, base_us in zip(tasks, times.step_time_us, strict=True):
    assert task.baseline_us == task.best_us == base_us  # A reward of 0.
    assert task.evaluations == 1
  assert len(set(times.step_time_us)) > 1


def test_bases_are_searched_once_for_all_sizes(tmp_path, monkeypatch):
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  kept = {"checkpoint_dir": str(tmp_path), "search_s": 0.5}
  fine = changes(problem, **kept)
  monkeypatch.setattr(targets, "find_bases", None)  # It is not called again.
  # A resumed run may have other seconds.
  coarse = changes(problem, 12, **kept | {"search_s": 9.0})
  assert coarse[0].decisions.num_decisions < 20
  for a, b in zip(fine, coarse, strict=True):
    np.testing.assert_array_equal(a.decisions.base, b.decisions.base)
    # A coarse decision keeps the devices of all its ops.
    assert a.baseline_us == b.baseline_us == b.best_us
  with pytest.raises(TypeError):
    changes(problem, **kept, seed=1)


def test_what_fits_nowhere_is_said():
  problem = problem_of(random_graph(20, seed=1), gpus(2, memory_bytes=1.0))
  for make in (changes, imitated):
    with pytest.raises(InfeasibleError, match="memory"):
      make(problem)


def test_demonstrations_of_merged_groups_are_their_best():
  problem = problem_of(random_graph(80, seed=7), gpus(2))
  task = imitated(problem, 6, search_evaluations=200)
  decisions = task.decisions
  every = np.indices((2,) * decisions.num_decisions, np.int32)
  every = every.reshape(decisions.num_decisions, -1).T
  simulated = Simulator(problem).run(decisions.to_devices(every)).step_time_us
  # 200 evaluations of search find the best of 2^6 placements; simplifying may
  # lose 1% of it.
  assert task.baseline_us == task.best_us <= 1.01 * simulated.min()
  assert task.best_us < simulated[0]
  assert task.evaluations > 200


def test_a_resumed_run_keeps_its_demonstrations(tmp_path, monkeypatch):
  problem = problem_of(random_graph(30, seed=7), gpus(2))
  kept = {"checkpoint_dir": str(tmp_path), "search_evaluations": 100}
  first = imitated(problem, **kept)
  monkeypatch.setattr(targets, "demonstrate", None)  # It is not called again.
  again = imitated(problem, **kept)
  np.testing.assert_array_equal(again.target, first.target)
  assert again.evaluations == first.evaluations > 100
  for size, evaluations in ((5, 100), (None, 101)):
    with pytest.raises(TypeError):
      imitated(problem, size, **kept | {"search_evaluations": evaluations})


def two_chains(memory_bytes=1e9):
  """Two chains of four 10 us ops, and twenty ops that take no time."""
  ops, edges = [], []
  for chain in range(2):
    for i in range(4):
      ops.append(
        core.OpSpec(f"c{chain}/{i}", "MatMul", {"GPU": 10.0}, [4.0], 5.0)
      )
      if i:
        edges.append((len(ops) - 2, 0, len(ops) - 1))
  for i in range(20):
    ops.append(core.OpSpec(f"idle{i}", "NoOp", {"GPU": 0.0}, [0.0]))
  graph = core.build_graph("chains", ops, edges)
  return problem_of(graph, gpus(2, memory_bytes=memory_bytes))


def test_what_shortens_the_step_stays_and_the_rest_returns():
  problem = two_chains()
  noise = np.random.default_rng(0).integers(0, 2, 20)
  # A chain on each GPU; the names of the GPUs are swapped.
  searched = np.array([1] * 4 + [0] * 4 + noise.tolist(), np.int32)
  found, _ = targets.simplified(problem, searched, np.zeros(28, np.int32))
  times = Simulator(problem).run(np.stack([searched, found])).step_time_us
  assert times[0] == times[1]
  # One chain is where it was, the other one is not, and nothing else moved.
  chains = found[:4].tolist(), found[4:8].tolist()
  assert sorted(chains) == [[0] * 4, [1] * 4]
  assert (found[8:] == 0).all()


def test_what_only_memory_asks_for_stays():
  # All on one GPU needs 8 * 5 bytes at least, and there are 30.
  problem = two_chains(memory_bytes=30.0)
  searched = np.array([0] * 4 + [1] * 4 + [0] * 20, np.int32)
  found, _ = targets.simplified(problem, searched, np.zeros(28, np.int32))
  assert Simulator(problem).run(found[None]).feasible.all()


def test_simplifying_costs_a_hundredth_and_ends_nearer():
  problem = problem_of(random_graph(120, seed=1), gpus(3))
  simulator = Simulator(problem)
  simple = get_placer("blocks").place(problem, simulator, Budget(9), 0)
  simple = simple.placement.devices
  searched = get_placer("annealing").place(
    problem, simulator, Budget(60, 3000), 0
  )
  searched = searched.placement.devices
  found, spent = targets.simplified(problem, searched, simple)
  before, after = simulator.run(np.stack([searched, found])).step_time_us
  assert after <= 1.01 * before and spent > 1
  assert (found != simple).sum() <= (searched != simple).sum()


@pytest.mark.parametrize("imitation_steps, learns", [(1, True), (0, False)])
def test_a_policy_rehearses_the_best_placement(imitation_steps, learns):
  task = chains_task()  # The target: all on one GPU.
  config = config_of("rnn", samples=2, learning_rate=0.0, iterations=120)
  config = dataclasses.replace(config, imitation_steps=imitation_steps)
  trainer = Trainer([task], config)
  trainer.learner.imitation_optimizer.learning_rate = 1e-2
  task.best, task.best_us = np.array([1, 0] * 5, np.int32), 254.0
  trainer.run()
  greedy_us = trainer.history[0][-1][2]
  assert (greedy_us == pytest.approx(254.0, abs=2)) == learns

import builtins
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.testing import exact as enumeration
from tests.testing import problems
from tfplace.bounds import lower_bound
from tfplace.core import Problem
from tfplace.core.symmetry import alike_devices
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers import place
from tfplace.placers.exact import cp_sat, placer
from tfplace.simulate import Simulator


def test_without_ortools_the_error_names_the_extra(monkeypatch):
  real = builtins.__import__

  def no_ortools(name, *args, **kwargs):
    if name.startswith("ortools"):
      raise ImportError(name)
    return real(name, *args, **kwargs)

  monkeypatch.setattr(builtins, "__import__", no_ortools)
  with pytest.raises(TfplaceError, match=r"pip install 'tfplace\[exact\]'"):
    cp_sat.cp_model()


def test_a_solver_that_dies_is_told(monkeypatch, tmp_path):
  broken = tmp_path / "python"
  broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
  broken.chmod(0o755)
  monkeypatch.setattr(sys, "executable", str(broken))
  with pytest.raises(TfplaceError, match=r"exit code 3; it said 'out of luck'"):
    place(problems.random_problem(1), "exact", budget_s=1)


def wait_for_child(parent):
  """The process id of the first child of a process."""
  path = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
  deadline = time.monotonic() + 600
  while not (found := path.read_text().split()):
    assert time.monotonic() < deadline, "no child was started"
    time.sleep(0.01)
  return int(found[0])


class TestWithOrTools:
  @pytest.fixture(autouse=True)
  def _needs_ortools(self):
    pytest.importorskip("ortools")

  @pytest.mark.parametrize("seed", [14, 22, 24, 26, 38, 42, 47, 58])
  def test_finds_and_proves_the_optimum_of_small_problems(self, seed):
    problem = problems.random_problem(seed)
    best, _ = enumeration.optimum(problem)
    bound, placement = placer.prove(problem, limit_s=120)
    (evaluation,) = Simulator(problem).evaluate([placement])
    assert evaluation.feasible
    assert evaluation.step_time_us == pytest.approx(best)
    assert best * (1 - 1e-6) <= bound <= best

  def test_is_tighter_than_what_is_proved_without_search(self):
    # Three ops of 4 us on two devices: 8, while work alone says 6.
    problem = Problem(
      problems.graph([4.0] * 3, []), problems.cluster([np.inf] * 2)
    )
    bound, _ = placer.prove(problem, limit_s=120)
    assert lower_bound(problem).us == pytest.approx(6)
    assert bound == pytest.approx(8)

  def test_transfer_comes_between_producer_and_consumer(self):
    # 10 us, then 10 us at home while the output moves for 9 us and the other
    # op takes 10 us elsewhere.
    problem = Problem(
      problems.graph([10.0] * 3, [(0, 1), (0, 2)], output_bytes=[(9.0,)] * 3),
      problems.cluster([np.inf] * 2),
    )
    bound, _ = placer.prove(problem, limit_s=120)
    assert bound == pytest.approx(10 + 9 + 10)

  def test_result_is_what_the_simulator_says(self):
    problem = problems.random_problem(3)
    result = place(problem, "exact", budget_s=5)
    (again,) = Simulator(problem).evaluate([result.placement])
    assert result.strategy == "exact"
    assert again.step_time_us == result.evaluation.step_time_us

  def test_nothing_that_fits_is_an_error(self):
    problem = Problem(
      problems.graph([1.0], [], persistent_bytes=[10.0]),
      problems.cluster([4.0, 5.0]),
    )
    with pytest.raises(InfeasibleError):
      place(problem, "exact", budget_s=5)

  def test_problem_that_is_too_large_is_refused(self):
    times = [1.0] * 10_001
    problem = Problem(problems.graph(times, []), problems.cluster([np.inf] * 2))
    with pytest.raises(TfplaceError, match="at most 20000 ops x devices"):
      place(problem, "exact", budget_s=0.1)

  def test_alike_devices_are_found(self):
    problem = Problem(
      problems.graph([{"GPU": 1.0, "CPU": 1.0}], []),
      problems.cluster([np.inf] * 4, kinds=["GPU", "GPU", "CPU", "CPU"]),
    )
    alike = alike_devices(problem)
    assert alike == [[0, 1], [2, 3]]
    schedule = cp_sat.Schedule(None, None, [[None] * 4], 1.0, alike)
    names = schedule.renamed(np.array([2], np.int32))
    assert sorted({int(row[0]) for row in names}) == [2, 3]

  def test_devices_whose_links_differ_are_not_alike(self):
    problem = Problem(
      problems.graph([1.0], []),
      problems.cluster([np.inf] * 3, links=[(0, 1), (1, 0), (1, 2)]),
    )
    assert alike_devices(problem) == []

  def test_runs_beside_tensorflow(self):
    code = (
      "import problems, tensorflow as tf; tf.constant(1) + 1\n"
      "from tfplace.placers import place\n"
      "found = place(problems.random_problem(14), 'exact', 5)\n"
      "print(found.evaluation.feasible)"
    )
    done = subprocess.run(
      [sys.executable, "-c", code],
      capture_output=True,
      text=True,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
      check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.strip() == "True"

  def test_keeps_to_a_number_of_evaluations(self):
    problem = problems.random_problem(14)
    # One-shot starts are judged in any case: on each device, and HEFT's.
    most = problem.cluster.num_devices + 4
    few = placer.search_apart(problem, 20.0, max_evaluations=1, seed=0)
    assert few[2] <= most
    all_of_them = placer.search_apart(problem, 20.0, None, 2**31)
    assert all_of_them[2] > most

  def test_ends_with_its_parent(self):
    code = (
      "import problems\n"
      "from tfplace.placers.exact import placer\n"
      "placer.search_apart(problems.random_problem(14), 1e5, None, 0)"
    )
    parent = subprocess.Popen(
      [sys.executable, "-c", code],
      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    child = wait_for_child(parent.pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 600
    while pathlib.Path(f"/proc/{child}").exists():
      assert time.monotonic() < deadline, "the solver outlived its parent"
      time.sleep(0.05)

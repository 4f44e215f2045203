"""The comparison of learned placers runs, goes on, and sums up."""

import json
import math
import subprocess
import sys

from benchmarks.learned import methods_report
from tests.testing.extra_train import needs_extra_train
from tfplace import core, formats

PROGRAM = "benchmarks.learned.run_methods"


def save_chains(folder):
  """Two chains of six ops; the optimum gives each a GPU of its own."""
  ops = [
    core.OpSpec(f"op{i}", "Relu", {"GPU": 50.0, "CPU": 500.0}, [1e6])
    for i in range(12)
  ]
  edges = [(i, 0, i + 2) for i in range(10)]
  graph = core.build_graph("tiny", ops, edges)
  formats.save_graph(graph, folder / "tiny.json")


def run_tiny(folder, *more):
  done = subprocess.run(
    [
      *(sys.executable, "-m", PROGRAM, f"--graphs={folder / 'tiny.json'}"),
      *(f"--work_dir={folder / 'work'}", f"--out={folder / 'l.json'}"),
      *("--evaluations=40", "--trials=1", "--graph_cache_dir=", *more),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


@needs_extra_train
def test_a_run_keeps_what_is_there_and_spends_its_evaluations(tmp_path):
  save_chains(tmp_path)
  run_tiny(tmp_path, "--strategies=random,rnn,gdp_zero_shot", "--seeds=0")
  found = json.loads((tmp_path / "l.json").read_text())
  assert list(found["runs"]) == [
    "tiny/k80x2/random/0/0",
    "tiny/k80x2/rnn/0/0",
    "tiny/k80x2/gdp_zero_shot/0/0",
  ]
  for run in found["runs"].values():
    evaluations, seconds, steps = zip(*run["curve"], strict=True)
    # RNN's iterations are of 17 placements: its third ends past the limit.
    assert run["evaluations"] in (40, 51)
    assert evaluations[-1] in (40, 34)
    assert list(evaluations) == sorted(evaluations)
    assert list(seconds) == sorted(seconds)
    known = [us for us in steps if us is not None]
    assert known == sorted(known, reverse=True)
    assert run["step_time_us"] == known[-1]
    assert known[-1] >= found["graphs"]["tiny/k80x2"]["lower_bound_us"]
  printed = run_tiny(tmp_path, "--strategies=random", "--seeds=0,1")
  assert "tiny/k80x2/random/0/1" in printed
  assert "tiny/k80x2/random/0/0" not in printed
  text = (tmp_path / "l.md").read_text()
  assert "40 evaluations per run, 1 tuning trials" in text
  assert "256 groups for those that merge" in text
  assert (tmp_path / "l.png").stat().st_size > 0


def run_of(*points):
  curve = [[n, float(n), us] for n, us in points]
  return {"step_time_us": points[-1][1], "curve": curve}


def results(**runs):
  graphs = {"g/k80x2": {"ops": 9, "groups": 9, "lower_bound_us": 50.0}}
  keys = {f"g/k80x2/{name.replace('__', '/')}": r for name, r in runs.items()}
  about = {"evaluations": 100, "trials": 2}
  return {"about": about, "graphs": graphs, "runs": keys}


def test_other_seeds_run_with_the_setting_that_was_best_with_the_first():
  found = results(
    gdp__0__0=run_of((10, 90.0)),
    gdp__1__0=run_of((10, 80.0)),
    gdp__1__1=run_of((10, 60.0)),
    gdp__1__2=run_of((10, 70.0)),
  )
  assert methods_report.best_trial(found, "g/k80x2", "gdp", 0) == 1
  # Median of 80, 60 and 70, of a bound of 50.
  assert methods_report.cell(found, "g/k80x2", "gdp") == "1.400"
  assert methods_report.cell(found, "g/k80x2", "rnn") == "-"


def test_the_claim_counts_evaluations_to_the_rivals_best():
  found = results(
    gdp__0__0=run_of((10, 100.0), (20, 75.0), (90, 60.0)),
    hierarchical__0__0=run_of((50, 90.0), (80, 75.0)),
  )
  (sentence,) = methods_report.claim(found, "gdp", "hierarchical")
  # 75 / 60, and 80 evaluations against 20.
  assert "1.250 times" in sentence and "4.0 times fewer" in sentence
  assert "on 1 of 1" in sentence
  (sentence,) = methods_report.claim(found, "hierarchical", "gdp")
  assert "0.800 times" in sentence and "on 0 of 1" in sentence
  assert "fewer" not in sentence
  assert methods_report.claim(found, "placeto", "rnn") == []


def test_transfer_compares_with_training_on_the_graph_itself():
  tuned = run_of(*((n, 90.0 if n < 50 else 60.0) for n in range(1, 61)))
  found = results(
    gdp_merged__0__0=run_of((10, 100.0), (20, 75.0)),
    gdp_pretrained__0__0={**tuned, "greedy_us": [150.0, 80.0]},
  )
  (sentence,) = methods_report.transfer(found)
  # 150 / 75 at first, and 60 / 75 after the fiftieth iteration.
  assert "2.000 times" in sentence and "0.800 times" in sentence
  assert methods_report.transfer(results(gdp__0__0=run_of((10, 9.0)))) == []


def test_zero_shot_is_the_best_of_the_policys_samples():
  found = results(
    gdp_merged__0__0=run_of((10, 100.0), (20, 75.0)),
    gdp_zero_shot__0__0=run_of((1, 100.0), (17, 90.0)),
  )
  (sentence,) = methods_report.zero_shot(found)
  assert "1.200 times" in sentence and "of 1 graphs" in sentence
  assert methods_report.zero_shot(results(gdp__0__0=run_of((1, 9.0)))) == []


def test_at_equal_seconds_only_what_was_found_by_then_counts():
  found = results(
    # Seconds are evaluations here: the second ends at 30.
    gdp__0__0={**run_of((10, 100.0), (30, 75.0), (90, 60.0)), "seconds": 90.0},
    hierarchical__0__0={**run_of((20, 80.0), (30, 70.0)), "seconds": 30.0},
    rnn__0__0={**run_of((40, 80.0)), "seconds": 40.0},
  )
  *_, table = methods_report.equal_seconds(found, ["gdp", "hierarchical"])
  assert table.splitlines()[2:] == [
    "| g/k80x2 | 30.0 | 1.500 | 1.400 |",
    "| *geometric mean of 1 graphs* |  | 1.500 | 1.400 |",
  ]
  # The RNN's first iteration took longer: it has nothing by then.
  *_, table = methods_report.equal_seconds(found, ["hierarchical", "rnn"])
  assert table.splitlines()[2:] == ["| g/k80x2 | 30.0 | 1.400 | - |"]
  assert methods_report.equal_seconds(found, ["gdp"]) == []


@needs_extra_train
def test_seconds_end_a_run_in_place_of_evaluations(tmp_path):
  save_chains(tmp_path)
  more = "--strategies=random_gpus,rnn", "--seeds=0", "--seconds=2"
  run_tiny(tmp_path, *more)
  found = json.loads((tmp_path / "l.json").read_text())
  assert len(found["runs"]) == 2
  drawn = found["runs"]["tiny/k80x2/random_gpus/0/0"]
  assert drawn["evaluations"] > 40  # the flag's
  for run in found["runs"].values():
    # The clock is read once more after the last point, and is rounded.
    assert run["seconds"] > 1.9
    # Later points do not count, unless there is no other.
    assert run["curve"][-1][1] <= 2.0 or len(run["curve"]) == 1
  assert "2 seconds per run" in (tmp_path / "l.md").read_text()


def test_a_run_in_which_nothing_fits_is_out_of_memory():
  found = results(rnn__0__0=run_of((10, None)))
  assert methods_report.cell(found, "g/k80x2", "rnn") == "OOM"
  assert math.isinf(
    methods_report.evaluations_to([found["runs"]["g/k80x2/rnn/0/0"]], 1.0)
  )

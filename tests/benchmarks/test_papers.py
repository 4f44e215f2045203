"""The papers' own experiments run, go on, and sum up."""

import json
import subprocess
import sys

import pytest

from benchmarks.learned import hold_one_out_report, placeto_report, policy_jobs
from benchmarks.lib import one_gpu
from tests.testing.extra_train import needs_extra_train
from tfplace.models import families


def run_of(*points, **more):
  """A run that found step times after so many placements."""
  return {"curve": [[n, float(n), us] for n, us in points], **more}


def member(bound_us, **runs):
  graph = {"lower_bound_us": bound_us, "single_us": 400.0, "expert_us": 300.0}
  return {"graph": graph, "runs": runs}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_no_member_both_trains_and_tests(family):
  train, test = one_gpu.unseen_split(family)
  assert not set(train) & set(test) and len(test) == 8
  assert sorted([*train, *test]) == list(range(families.MEMBERS))


def test_members_of_nmt_that_test_share_no_length_with_those_that_train():
  lengths = [
    {families.sizes(index)["length"] for index in part}
    for part in one_gpu.unseen_split("nmt")
  ]
  assert not lengths[0] & lengths[1] and len(lengths[1]) == 2


def placeto_family():
  zero_shot, trained = placeto_report.ARMS[:2]
  rnn = placeto_report.ARMS[3]
  fewer = placeto_report.arm("placeto", "2 visits", placeto_report.TRAINED)
  return {
    "a": member(
      100.0,
      **{
        zero_shot: [run_of((10, 300.0), (20, 200.0))],
        trained: [run_of((100, 220.0), (300, 150.0))],
        rnn: [run_of((50, 250.0), (800, 160.0))],
        fewer: [run_of((100, 400.0))],
        "random": [run_of((200, 250.0), (1000, 240.0))],
      },
    ),
    "b": member(
      10.0,
      **{
        zero_shot: [run_of((10, 80.0))],
        trained: [run_of((100, 60.0))],
        rnn: [run_of((400, 50.0))],
        fewer: [run_of((100, 100.0))],
        "random": [run_of((200, None), (1000, 60.0))],
      },
    ),
  }


def test_step_times_are_means_over_the_unseen_members():
  lines = placeto_report.step_times({"ptb": placeto_family()}, 200)
  cells = dict(line.strip("| ").split(" | ") for line in lines[2:])
  # sqrt(2 * 8), sqrt(1.5 * 6), sqrt(1.6 * 5), sqrt(2.4 * 6).
  assert cells["placeto, zero-shot"] == "4.000"
  assert cells["placeto, trained on the graph"] == "3.000"
  assert cells["rnn, trained on the graph"] == "2.828"
  assert cells["random"] == "3.795"
  # No placement of the first 200 fits on the second; no RNN was zero-shot.
  assert cells["random, 200 placements"] == "OOM"
  assert cells["rnn, zero-shot"] == "-"
  # sqrt(4 * 40), sqrt(3 * 30).
  assert (cells["single"], cells["expert"]) == ("12.649", "9.487")


def test_samples_are_counted_to_the_best_of_the_rnn():
  *_, line = placeto_report.samples({"ptb": placeto_family()})
  # 160 after 800 and 300, 50 after 400 and never.
  assert line == "| ptb | 600 (2 of 2) | 300 (1 of 2) | - (0 of 2) |"


def test_a_variant_has_a_line_and_only_where_it_was_run():
  family = placeto_family()
  lines = placeto_report.ablations({"ptb": family, "nmt": {"c": member(1.0)}})
  assert lines[2:] == [
    "| as it is | 4.000 | 3.000 | - | - |",
    "| 2 visits | - | 6.325 | - | - |",  # sqrt(4 * 10)
  ]


def test_the_cdfs_are_drawn(tmp_path):
  placeto_report.draw({"ptb": placeto_family()}, tmp_path / "p.png")
  assert (tmp_path / "p.png").stat().st_size > 1000


def held_out():
  tuned, scratch = hold_one_out_report.TUNED, hold_one_out_report.SCRATCH
  less = hold_one_out_report.arm("no attention", tuned)
  return {
    "a/p100x2": member(
      100.0,
      **{
        tuned: [run_of((17, 200.0), (850, 120.0), greedy_us=[500.0, 90.0])],
        scratch: [run_of((17, 300.0), (850, 150.0))],
        less: [run_of((17, 400.0), (850, 160.0))],
        "batch": [run_of((850, 140.0))],
        "HDP": [run_of((17, None), (850, 180.0))],
      },
    )
  }


def test_zero_shot_is_the_sample_of_the_first_iteration():
  line = hold_one_out_report.every_row(held_out())[2]
  # Zero-shot, untrained, tuned, scratch, batch, HDP, human, most probable.
  times = "2.000 | 3.000 | 1.200 | 1.500 | 1.400 | 1.800 | 3.000 | 5.000"
  assert line == f"| a/p100x2 | {times} |"


def test_the_ablation_has_a_line_for_each_network():
  assert hold_one_out_report.ablations(held_out())[2:] == [
    "| as it is | 2.000 | 1.200 |",
    "| no attention | 4.000 | 1.600 |",
  ]
  bare = {"a": member(100.0)}
  assert hold_one_out_report.ablations(bare)[2:] == ["| as it is | - | - |"]


def test_a_curve_keeps_its_improvements_and_its_end():
  points = [[1, 0.1, None], [2, 0.2, 9.0], [3, 0.3, 9.0], [4, 0.4, 7.0]]
  assert policy_jobs.improvements([*points, [5, 0.5, 7.0]]) == [
    [2, 0.2, 9.0],
    [4, 0.4, 7.0],
    [5, 0.5, 7.0],
  ]


def tiny_flags(folder):
  return [
    *(f"--graph_cache_dir={folder / 'cache'}", "--seeds=0", "--decisions=4"),
    *(f"--work_dir={folder / 'work'}", f"--out={folder / 'r.json'}"),
    *("--pretraining=2", "--variants=as it is"),
  ]


def run(program, *arguments):
  done = subprocess.run(
    [sys.executable, "-m", f"benchmarks.learned.{program}", *arguments],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


@needs_extra_train
def test_placeto_places_members_that_it_has_not_seen(tmp_path):
  flags = ["--families=ptb", "--members=1", "--tests=1", "--evaluations=30"]
  flags += ["--zero_shot=20", *tiny_flags(tmp_path)]
  run("run_placeto", *flags)
  rows = json.loads((tmp_path / "r.json").read_text())["rows"]
  first = one_gpu.unseen_split("ptb")[1][0]
  arms = [*placeto_report.ARMS]
  found = {key.split("/")[1] for key in rows if key.startswith(f"ptb {first}/")}
  assert found == {"graph", *arms}
  bound_us = rows[f"ptb {first}/graph"]["lower_bound_us"]
  for arm in arms:
    row = rows[f"ptb {first}/{arm}/0"]
    assert row["curve"][-1][2] >= bound_us
    if placeto_report.ZERO_SHOT in arm:
      assert row["evaluations"] <= 20
  again = run("run_placeto", *flags)  # only the report
  assert again.splitlines()[0].startswith("Trained on 1 members")
  assert (tmp_path / "r.png").stat().st_size > 1000


@needs_extra_train
def test_a_family_that_is_alone_cannot_be_held_out(tmp_path):
  done = subprocess.run(
    [
      *(sys.executable, "-m", "benchmarks.learned.run_hold_one_out"),
      "--rows=RNNLM",
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode and "rnnlm is the only one" in done.stderr

"""The suite runs, goes on where it was cut off, and sums up what it found."""

import json
import math

import pytest

from benchmarks.lib import published, report
from benchmarks.placement import suite_report
from tests.testing import tiny_row


def run_tiny(out, cache_dir, *more):
  """Runs the suite on one tiny row; what it printed."""
  return tiny_row.run(
    "placement.run_suite",
    *(f"--out={out}", "--strategies=single,heft,auto", "--seeds=0,1"),
    *("--budget_s=0.2", f"--graph_cache_dir={cache_dir}", *more),
  )


def test_a_run_that_was_cut_off_goes_on_where_it_was(tmp_path):
  out = tmp_path / "suite.json"
  run_tiny(out, tmp_path / "graphs")
  first = json.loads(out.read_text())
  keys = [f"tiny/p100x2/{s}" for s in ("single/0", "heft/0")]
  keys += [f"tiny/p100x2/auto/{seed}" for seed in (0, 1)]
  assert sorted(first["results"]) == sorted(keys)
  assert all(
    first["results"][key]["step_time_us"] > 0 for key in first["results"]
  )
  # What is there is kept, what was lost is run again.
  kept = dict(first["results"])
  kept["tiny/p100x2/single/0"]["step_time_us"] = 123.0
  del kept["tiny/p100x2/auto/1"]
  out.write_text(json.dumps({**first, "results": kept}))
  printed = run_tiny(out, tmp_path / "graphs")
  again = json.loads(out.read_text())["results"]
  assert again["tiny/p100x2/single/0"]["step_time_us"] == 123.0
  assert "tiny/p100x2/auto/1" in again
  assert "tiny/p100x2/heft/0" not in printed
  assert "| tiny (2) |" in out.with_suffix(".md").read_text()
  assert out.with_suffix(".png").stat().st_size > 0


def result(step_time_us):
  return {
    "step_time_us": step_time_us,
    "seconds_to_best": 2.5,
    "evaluations_to_best": 1000,
  }


def results(**of_strategy):
  rows = {
    f"2-layer GNMT/p100x2/{strategy}/{seed}": row
    for strategy, seeds in of_strategy.items()
    for seed, row in enumerate(seeds)
  }
  about = {"ops": 10, "edges": 9, "lower_bound_us": 50.0}
  graphs = {"2-layer GNMT/p100x2": about}
  return {"budget_s": 1.0, "graphs": graphs, "results": rows}


def test_a_row_is_judged_by_the_median_over_seeds():
  found = suite_report.medians(
    results(auto=[result(90.0), result(60.0), result(70.0)]),
    "2-layer GNMT/p100x2",
  )
  assert found["auto"]["step_time_us"] == 70.0


def test_a_search_of_an_earlier_version_is_marked(tmp_path):
  out, now = tmp_path / "s.json", {"search_version": 2}
  found = results(
    auto=[{**result(80e3), **now}], annealing=[result(81e3)], heft=[result(9e4)]
  )
  suite_report.write(found, out)
  text = out.with_suffix(".md").read_text()
  assert "| 2-layer GNMT (2) | 80.0 | 81.0* | 90.0 |" in text
  assert text.endswith("\\* by an earlier version of the search\n")
  suite_report.write(results(auto=[result(80e3)]), out)
  assert "*" not in out.with_suffix(".md").read_text().splitlines()[4]


def test_auto_is_compared_with_the_expert_the_best_rival_and_the_bound():
  found = {
    "auto": result(80.0),
    "expert": result(120.0),
    "heft": result(100.0),
    "single": result(70.0),  # a baseline, no competitor
    "metis": {"oom": "it does not fit"},
  }
  rated = suite_report.ratios(found, 50.0)
  assert rated == {
    "auto / bound": 1.6,
    "auto / best competitor": 0.8,
    "expert / auto": 1.5,
  }


def test_the_table_says_where_memory_ran_out(tmp_path):
  out = tmp_path / "s.json"
  suite_report.write(
    results(
      auto=[result(80e3)], metis=[{"oom": "no"}], scotch=[{"error": "x"}]
    ),
    out,
  )
  lines = out.with_suffix(".md").read_text().splitlines()
  summary, everything, effort = (
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in lines
    if line.startswith("| 2-layer GNMT (2)")
  )
  assert everything[1:] == ["80.0", "OOM", "-"]
  assert effort[1:] == ["2.5 (1,000)", "OOM", "-"]
  assert summary[4] == "OOM"
  # The published human expert takes .384 s where GO takes .301.
  assert summary[-2] == "1.28"
  assert summary[-1] == "GO 0.301, human 0.384, METIS 0.344, HDP 0.327"


@pytest.mark.parametrize(("cpu_us", "cell"), [(9e6, "70.0"), (70e3, "OOM")])
def test_one_gpu_is_out_of_memory_where_single_is_the_cpu(cpu_us, cell):
  found = results(single=[result(70e3)], cpu=[result(cpu_us)])
  table = suite_report.summary(suite_report.cases_of(found, "p100"))
  (line,) = [x for x in table.splitlines() if x.startswith("| 2-layer GNMT")]
  assert line.split(" | ")[2] == cell


def test_several_gpus_are_shown_at_a_glance(tmp_path):
  out = tmp_path / "s.json"
  found = results(
    auto=[result(80e3)],
    annealing=[result(81e3)],
    heft=[result(90e3)],
    expert=[result(120e3)],
  )
  for key in list(found["results"]):
    found["results"][key.replace("p100", "k80")] = found["results"][key]
  found["graphs"]["2-layer GNMT/k80x2"] = {
    **found["graphs"]["2-layer GNMT/p100x2"],
    "lower_bound_us": 64e3,
  }
  suite_report.write(found, out)
  text = out.with_suffix(".md").read_text()
  cells = "120.0 | 90.0 heft | 81.0 | 80.0 | 1.50 | 0.99 | 1.25 | 1.28 |"
  assert f"| 2-layer GNMT | k80x2 | {cells}" in text
  assert (
    "| *geometric mean* | *k80* |  |  |  |  | 1.50 | 0.99 | 1.25 | 1.28 |"
    in text
  )


def test_geometric_mean_of_published_ratios_is_that_of_the_paper():
  # GO's table 1, recomputed: human experts take 1.258 times GO's steps.
  ratios = [
    row.published["human"] / row.published["GO"] for row in published.GO_ROWS
  ]
  assert report.geometric_mean(ratios) == pytest.approx(1.258, abs=2e-3)
  assert math.isnan(report.geometric_mean([]))

"""The published rows with microbatches: which are run, and their table."""

import math
import types

import pytest

from benchmarks.microbatches import run_published
from tfplace.bin import cli


def flags(rows="", gpus=()):
  return types.SimpleNamespace(rows=rows, gpus=list(gpus))


def test_rows_are_run_on_p100s_or_on_the_gpus_they_were_published_on():
  jobs = run_published.wanted(flags("RNNLM|NMT"))
  found = {(row.label, row.cluster(gpu)) for row, gpu in jobs}
  assert ("2-layer RNNLM", "p100x2") in found
  assert {("NMT", "k80x2"), ("NMT", "k80x4")} <= found
  assert len(jobs) == len(found)


def test_only_gpus_of_a_row_are_run():
  jobs = run_published.wanted(flags("^NMT", ["v100"]))
  assert [row.cluster(gpu) for row, gpu in jobs] == ["v100x4"]
  with pytest.raises(cli.UsageError, match="--rows='NoSuch' --gpus=v100"):
    run_published.wanted(flags("NoSuch", ["v100"]))


def test_the_table_has_ratios_and_their_geometric_mean():
  auto = {
    "step_time_us": 1e3,
    "microbatches": 4,
    "step_times_us": {"1 (1)": 2e3, "4 (4)": 1e3},
  }
  rows = {
    ("a", "p100x2"): {
      "ops": 1200,
      "expert": {"step_time_us": 2e3},
      "auto": auto,
    },
    ("b", "p100x2"): {
      "ops": 10,
      "expert": {"step_time_us": 8e3},
      "auto": auto,
    },
    ("c", "k80x2"): {"ops": 10, "expert": {"oom": "no"}, "auto": auto},
  }
  lines = run_published.markdown(rows).splitlines()
  assert lines[2] == "| a | p100x2 | 1,200 | 2.0 | 1.0 | 4 | 2.0 | 2.00 |"
  assert "OOM" in lines[4]
  assert lines[-1].endswith(f"| {math.sqrt(2 * 8):.2f} |")

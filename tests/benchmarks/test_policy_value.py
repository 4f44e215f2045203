"""Auto with and without the policy: both arms run, and their ratio is right."""

import json
import pathlib
import subprocess
import sys

import published

BENCHMARKS = pathlib.Path(published.__file__).parent

_RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import published, policy_value
tiny = dict(layers=1, units=4, vocabulary=9, length=2)
published.ROWS = (published.Row("tiny", "nmt", 2, {}, tiny, 2, ("p100",)),)
policy_value.app.run(policy_value.main)
"""


def test_both_arms_run_and_only_one_asks_the_policy(tmp_path):
  result = tmp_path / "value.json"
  command = [
    *(sys.executable, "-c", _RUN, str(BENCHMARKS), f"--result={result}"),
    *("--budgets_s=4", "--seeds=0", f"--graph_cache_dir={tmp_path}"),
  ]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  (row,) = json.loads(result.read_text())["rows"].values()
  assert "gdp" in row["with"]["tried"]
  assert "gdp" not in row["without"]["tried"]
  assert row["with"]["step_time_us"] <= row["with"]["tried"]["gdp"]
  ratio = row["without"]["step_time_us"] / row["with"]["step_time_us"]
  (line,) = [
    text
    for text in result.with_suffix(".md").read_text().splitlines()
    if text.startswith("| tiny ")
  ]
  assert line.endswith(f"| {ratio:.3f} |")

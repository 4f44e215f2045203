"""Auto with and without the policy: both arms run, and their ratio is right."""

import json

from tests.testing import tiny_row
from tfplace.bounds import lower_bound
from tfplace.learned import policies


def test_both_arms_run_and_only_one_asks_the_policy(tmp_path):
  result = tmp_path / "value.json"
  tiny_row.run(
    "learned.run_policy_value",
    *(f"--out={result}", "--budgets_s=4", "--seeds=0"),
    f"--policy={policies.SHIPPED / 'gdp'}",
    f"--graph_cache_dir={tmp_path}",
  )
  (row,) = json.loads(result.read_text())["rows"].values()
  assert "gdp" in row["with"]["tried"]
  assert "gdp" not in row["without"]["tried"]
  bound_us = lower_bound(tiny_row.problem(tmp_path)).us * (1 - 1e-9)
  for arm in ("with", "without"):
    assert row[arm]["step_time_us"] >= bound_us
    assert row[arm]["evaluations"] > len(row[arm]["tried"])
  ratio = row["without"]["step_time_us"] / row["with"]["step_time_us"]
  (line,) = [
    text
    for text in result.with_suffix(".md").read_text().splitlines()
    if text.startswith("| tiny ")
  ]
  assert line.endswith(f"| {ratio:.3f} |")

"""The sets of steps, and the table of what the policy gains."""

import re

from benchmarks import models, run_policy, sets


def names(rows):
  return {row.model for row in rows if isinstance(row, sets.TrainedRow)}


def test_no_step_of_the_holdout_was_trained_or_chosen_on():
  assert names(sets.HOLDOUT) == set(models.HOLDOUT)
  seen = names(sets.TRAINING) | names(sets.DEVELOPMENT)
  assert not seen & names(sets.HOLDOUT)
  assert seen <= set(models.MODELS) | set(models.DEVELOPMENT)

  def gpus(rows):
    return {
      gpu
      for row in rows
      for gpu in re.findall("([a-z][a-z0-9-]*?)x\\d", row.cluster)
    }

  seen = gpus(sets.TRAINING) | gpus(sets.DEVELOPMENT)
  assert not seen & gpus(sets.HOLDOUT)


def test_gains_are_ratios_of_medians():
  def arms(without, with_, kind):
    return {
      "kind": kind,
      "without": {"step_time_us": without},
      "with": {"step_time_us": with_},
      "blind": {"step_time_us": 2 * with_},
    }

  alone = {"one_shot": {"metis": {"step_time_us": 6.0}, "m_sct": {"error": ""}}}
  alone["policy"] = {"step_time_us": 3.0}
  alone["blind"] = {"step_time_us": 9.0}
  rows = {
    "a/alone": alone,
    "a/10/0": arms(8.0, 2.0, "microbatched"),
    "a/10/1": arms(8.0, 4.0, "microbatched"),
    "a/10/2": arms(4.0, 4.0, "microbatched"),
    "b/alone": alone,
    "b/10/0": arms(1.0, 2.0, "whole in units"),
  }
  for row in rows.values():
    row["commit"] = "abc"
  tables = run_policy.tables({"stamp": {}, "rows": rows})
  # Medians of a: 8 without, 4 with.
  assert (
    "| 1 microbatched, 10 s | 2.000 | 2.000 | 2.000 | 1.000 |"
    in tables["policy"]
  )
  assert (
    "| 1 whole in units, 10 s | 0.500 | 0.500 | 0.500 | 0.250 |"
    in tables["policy"]
  )
  assert "metis 2.00 (2.00)" in tables["policy_alone"]
  assert "without its network 3.00 (3.00)" in tables["policy_alone"]
  published = run_policy.tables({"stamp": {"set": "published"}, "rows": rows})
  assert published.keys() == {"policy_published", "policy_alone_published"}

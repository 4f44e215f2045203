"""Stamped rows, flags and tables of the benchmarks."""

import json

import pytest

from benchmarks import lib
from tfplace.bin import cli


def never():
  raise AssertionError("measured anew")


def test_a_saved_row_is_stamped_and_not_measured_again(tmp_path):
  path = tmp_path / "rows.json"
  saved = lib.Rows(path, {"budget_s": 1.0}, seeds=[0, 1])
  assert saved.row("a", lambda: {"us": 2.0})["us"] == 2.0
  found = json.loads(path.read_text())
  assert found["stamp"]["seeds"] == [0, 1]
  assert found["stamp"]["costs"].startswith("kernels ")
  assert found["stamp"]["policy"].startswith("ordered ")
  assert found["rows"]["a"]["commit"] == lib.commit()
  assert "cores" in found["rows"]["a"]["host"]
  again = lib.Rows(path, {"budget_s": 1.0}, seeds=[0, 1])
  assert again.row("a", never)["us"] == 2.0


def test_rows_of_another_stamp_are_refused(tmp_path):
  path = tmp_path / "rows.json"
  lib.Rows(path, {}, seeds=[0]).put("a", {})
  with pytest.raises(cli.UsageError, match="choose another --out"):
    lib.Rows(path, {}, seeds=[1])
  path.write_text("[]")
  with pytest.raises(cli.UsageError, match="no stamped rows"):
    lib.Rows(path, {}, seeds=[0])


def test_the_policy_stamp_depends_on_its_files(tmp_path):
  (tmp_path / "weights").write_text("1")
  before = lib.policy_stamp(str(tmp_path))
  (tmp_path / "weights").write_text("2")
  assert lib.policy_stamp(str(tmp_path)) != before


def test_only_marked_tables_with_a_name_are_replaced():
  page = "a\n<!-- benchmark: x -->\nold\n<!-- end -->\nb\n"
  other = page.replace("x -->", "y -->")
  text = lib.put_tables(page + other, {"x": "| new |"})
  marked = "<!-- benchmark: x -->\n\n| new |\n<!-- end -->"
  assert text == page.replace(page[2:-3], marked) + other
  assert lib.put_tables(text, {"x": "| new |"}) == text


def test_means_are_geometric():
  assert lib.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
  assert lib.mean_and_least([2.0, 8.0]) == "4.00 (2.00)"
  assert lib.mean_and_least([]) == "-"

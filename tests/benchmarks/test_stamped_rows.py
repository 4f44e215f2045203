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

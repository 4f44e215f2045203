"""All benchmarks: their flags, quick runs, and the committed tables."""

import importlib
import json
import re

import pytest

from benchmarks import lib, run_all
from tests.testing.slow import SLOW_TESTS

_FAST = ("speed",)
_WITH_TABLES = [
  name for name, b in run_all.BENCHMARKS.items() if b.out[1] == "json"
]


def module_of(name):
  return importlib.import_module(run_all.BENCHMARKS[name].module)


def table_names(text):
  return re.findall("<!-- benchmark: (\\w+) -->", text)


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(
      name,
      marks=pytest.mark.skipif(
        not SLOW_TESTS and name not in _FAST, reason="set TFPLACE_SLOW_TESTS"
      ),
    )
    for name in _WITH_TABLES
    if run_all.BENCHMARKS[name].data is None
  ],
)
def test_a_quick_run_writes_rows_and_pages(name, tmp_path):
  flags = ["--quick", f"--only={name}", f"--results_dir={tmp_path}"]
  assert run_all.OPTIONS.call(run_all.main, flags) == 0
  found = json.loads((tmp_path / f"{name}.json").read_text())
  assert all(row["commit"] == lib.commit() for row in found["rows"].values())
  written = [(tmp_path / page).read_text() for page in run_all.PAGES]
  for table in module_of(name).tables(found).values():
    assert any(table in page for page in written)


def test_committed_pages_have_the_tables_of_committed_files(tmp_path):
  run_all.write_pages(lib.RESULTS, tmp_path)
  tables = set()
  for page in run_all.PAGES:
    committed = (lib.ROOT / page).read_text()
    assert (tmp_path / page).read_text() == committed, page
    tables |= set(table_names(committed))
  files = {path.stem for path in lib.RESULTS.glob("*.json")}
  assert files == set(_WITH_TABLES)
  known = set()
  for name in files:
    found = lib.load(lib.RESULTS / f"{name}.json")
    known |= set(module_of(name).tables(found))
  assert tables == known


def test_what_benchmarks_measure_is_there():
  for benchmark in run_all.BENCHMARKS.values():
    for folder in benchmark.measures:
      assert (lib.ROOT / "tfplace" / folder).is_dir(), folder


@pytest.mark.skipif(lib.commit() == "unknown", reason="needs Git")
def test_stale_rows_are_told_and_never_lost(tmp_path, capsys):
  folder = f"--results_dir={tmp_path}"
  fresh = {"commit": lib.commit()}
  stamp = {"costs": None, "policy": None}
  path = tmp_path / "speed.json"

  def check(stamp, **rows):
    path.write_text(json.dumps({"stamp": stamp, "rows": rows}))
    code = run_all.OPTIONS.call(run_all.main, ["--only=check", folder])
    return code, capsys.readouterr().out

  assert check(stamp, new=fresh) == (0, "")
  code, told = check(stamp, new=fresh, old={"commit": "0123abcd"})
  assert code != 0
  assert "speed: 1 rows are of commit 0123abcd, which is not in this" in told
  code, told = check({**stamp, "policy": "ordered 0"}, new=fresh)
  assert code != 0 and "1 rows are of policy ordered 0, which now" in told
  before = path.read_text()
  with run_all._without_stale(tmp_path, "speed"):
    assert not path.exists()
  assert json.loads(path.read_text()) == json.loads(before)
  check(stamp, old={"commit": "0123abcd"}, gone={"commit": "0123abcd"})
  with run_all._without_stale(tmp_path, "speed"):
    path.write_text(json.dumps({"stamp": stamp, "rows": {"old": fresh}}))
  rows = json.loads(path.read_text())["rows"]
  assert rows == {"old": fresh, "gone": {"commit": "0123abcd"}}

"""Flags, stamped rows and Markdown tables of the benchmarks."""

import ast
import hashlib
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from tfplace.bin import cli
from tfplace.cost.kernels import parameters
from tfplace.formats import files
from tfplace.formats.json_file import write_json
from tfplace.measure.local.host import cpu_name
from tfplace.plan import graph_cache

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_POLICIES = ROOT / "tfplace" / "learned" / "pretrained"
Main = Callable[[flags.FlagValues], None]


class Options:
  """The flags of one benchmark.

  They are not absl's global flags, so that any two benchmarks can be imported
  by one process.

  Args:
    name: of the benchmark, which errors start with.
    text: description for `--help`.
  """

  def __init__(self, name: str, text: str) -> None:
    self.values = flags.FlagValues()
    self._name, self._text = name, text

  def add(self, name: str, default: Any, text: str, **options: Any) -> None:
    """Defines a flag; `options` are those of `cli.define`."""
    cli.define(self.values, name, text, default, **options)

  def add_search(self, budget_s: float | None, file: str) -> None:
    """Defines the flags of a benchmark that searches and writes `file`.

    Without seconds, the benchmark has another budget.
    """
    if budget_s is not None:
      self.add("budget_s", budget_s, "Seconds of each search.", least=0)
    self.add("seeds", ["0"], "Seeds of the searches.")
    self.add(
      "graph_cache_dir",
      graph_cache.default_directory(),
      "Where extracted graphs are kept between runs; empty: nowhere.",
    )
    self.add("out", str(RESULTS / file), "JSON file to write.")

  def call(self, main: Main, argv: Sequence[str] | None = None) -> int:
    """Parses flags and runs the benchmark; returns its exit code.

    Args:
      main: takes the values of all flags.
      argv: arguments; those of the process where left out.
    """

    def define(values: flags.FlagValues) -> None:
      for name in self.values:
        self.values[name].unparse()
      values.append_flag_values(self.values)
      self.values.mark_as_parsed()

    about = f"{self._name}: {self._text}"
    return cli.command(about, define, main)(argv)

  def run(self, main: Main) -> None:
    """Ends the process after the benchmark."""
    sys.exit(self.call(main))


def check_names(
  flag: str, names: Iterable[str], known: Collection[str]
) -> None:
  """Checks the names that a flag gives.

  Raises:
    UsageError: one is not known.
  """
  for name in names:
    if name not in known:
      raise cli.UsageError(
        f"--{flag}: unknown {name!r}; choose from {', '.join(known)}"
      )


def numbers(flag: str, texts: Iterable[str], least: int = 0) -> list[int]:
  """Returns the whole numbers that a flag gives.

  Raises:
    UsageError: one is not a whole number of at least `least`.
  """
  texts = list(texts)
  for text in texts:
    if not cli.is_count(text) or int(text) < least:
      raise cli.UsageError(
        f"--{flag}: {text!r} is no whole number of at least {least}"
      )
  return [int(text) for text in texts]


class Rows:
  """Rows of one JSON file by key, saved as soon as they are measured.

  A run that was cut off goes on: a row that the file holds is not measured
  again. The file is stamped with costs, policy, seeds and settings, each row
  with the commit and the host that measured it.

  Args:
    path: JSON file; made where there is none.
    settings: values that all rows have in common.
    seeds: seeds of the searches.
    costs: cost model of the steps, or None where none is used.
    policy: folder of an exported policy, or name of a shipped one.

  Raises:
    UsageError: the file holds rows with another stamp.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    settings: Mapping[str, object],
    *,
    seeds: Sequence[int] = (),
    costs: str | None = "kernels",
    policy: str | None = "ordered",
  ) -> None:
    self._path = pathlib.Path(path)
    files.check_writable(path)
    self.stamp = {
      "costs": costs and _costs_stamp(costs),
      "policy": policy and policy_stamp(policy),
      "seeds": list(seeds),
      **settings,
    }
    self.rows: dict[str, dict] = {}
    if self._path.exists():
      found = load(self._path)
      self.rows = found["rows"]
      if found["stamp"] != self.stamp:
        raise cli.UsageError(
          f"{path} holds rows of {found['stamp']}, not of {self.stamp}: choose"
          " another --out"
        )

  def row(self, key: str, measure: Callable[[], dict]) -> dict:
    """The row of that key; measured, stamped and saved if it is missing."""
    if key not in self.rows:
      self.put(key, measure())
      print(key, json.dumps(self.rows[key])[:200], flush=True)
    return self.rows[key]

  def put(self, key: str, row: Mapping[str, Any]) -> None:
    """Saves a row."""
    self.rows[key] = {**row, "commit": commit(), "host": host()}
    self._path.parent.mkdir(parents=True, exist_ok=True)
    write_json(self._path, {"stamp": self.stamp, "rows": self.rows})

  @property
  def found(self) -> dict[str, Any]:
    """The content of the file."""
    return {"stamp": self.stamp, "rows": self.rows}


def load(path: pathlib.Path) -> dict[str, Any]:
  """Reads a file that `Rows` wrote.

  Raises:
    UsageError: it has no stamp and rows.
  """
  found = json.loads(path.read_text(encoding="utf-8"))
  if not isinstance(found, dict) or not {"stamp", "rows"} <= set(found):
    raise cli.UsageError(f"{path} has no stamped rows: choose another --out")
  return found


def commit() -> str:
  """Returns the commit of this checkout, with "+" if the package differs."""
  changed = _git("status", "--porcelain", "--", "tfplace")
  head = _git("rev-parse", "--short=8", "HEAD")
  return (head or "unknown") + ("+" if changed else "")


def _git(*words: str) -> str | None:
  """Returns the output of Git, or None where it fails."""
  command = ["git", "-C", str(ROOT), *words]
  try:
    run = subprocess.run(command, capture_output=True, text=True, check=True)
  except (OSError, subprocess.CalledProcessError):
    return None
  return run.stdout.strip()


def stale(
  found: Mapping[str, Any], measures: Sequence[str]
) -> dict[str, list[str]]:
  """Returns rows by the reason why they are older than what they measure.

  Comments and docstrings may have changed since.

  Args:
    found: content of a file that `Rows` wrote.
    measures: paths of the code that its rows measure.
  """
  for what, today in (("costs", _costs_stamp), ("policy", policy_stamp)):
    was = found["stamp"].get(what)
    now = was and today(was.split()[0])
    if was != now:
      return {f"{what} {was}, which now are {now}": list(found["rows"])}
  by_commit: dict[str, list[str]] = {}
  for key, row in found["rows"].items():
    by_commit.setdefault(row["commit"], []).append(key)
  reasons = {}
  for made, keys in by_commit.items():
    since = made.rstrip("+"), "HEAD"
    files = _git("diff", "--name-only", *since, "--", *measures)
    if files is None:
      reasons[f"commit {made}, which is not in this checkout"] = keys
      continue
    changed = [
      path
      for path in files.splitlines()
      if len({_code(commit, path) for commit in since}) > 1
    ]
    if changed:
      more = f" and {len(changed) - 1} more" if changed[1:] else ""
      reasons[f"commit {made}, before changes of {changed[0]}{more}"] = keys
  return reasons


def _code(commit: str, path: str) -> str | None:
  """Returns a file of a commit; Python without comments and docstrings."""
  text = _git("show", f"{commit}:{path}")
  if text is None or not path.endswith(".py"):
    return text
  tree = ast.parse(text)
  for node in ast.walk(tree):
    body = getattr(node, "body", None)
    if isinstance(body, list):
      node.body = [line for line in body if not _is_text(line)]
  return ast.dump(tree)


def _is_text(line: ast.AST) -> bool:
  return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def host() -> str:
  """Returns the cores that this process may use, and their kind."""
  own = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
  return f"{len(own(0))} cores, {cpu_name()}"


def policy_stamp(policy: str) -> str:
  """Returns the name and the hash of a shipped or exported policy."""
  shipped = _POLICIES / policy
  folder = shipped if shipped.exists() else pathlib.Path(policy)
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  return f"{folder.name} {_digest(files)}"


def _costs_stamp(name: str) -> str:
  """Returns a cost model's name and a hash of the fitted kernel costs."""
  found = json.loads(parameters.PATH.read_text(encoding="utf-8"))
  del found["origin"]
  text = json.dumps(found, sort_keys=True)
  return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _digest(paths: Iterable[pathlib.Path]) -> str:
  found = hashlib.sha256()
  for path in paths:
    found.update(path.read_bytes())
  return found.hexdigest()[:8]


def pin_to_cores(count: int) -> None:
  """Keeps this process and its children on `count` cores, where that works."""
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def markdown(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
  """Returns a table in Markdown, without columns that are all "-"."""
  rows = [*lines]
  kept = [i for i in range(len(heads)) if {row[i] for row in rows} != {"-"}]
  shown = [
    f"| {' | '.join(str(row[i]) for i in kept)} |" for row in (heads, *rows)
  ]
  return "\n".join([shown[0], "|" + "---|" * len(kept), *shown[1:]])


def caption(found: Mapping[str, Any]) -> str:
  """Returns a line with the commits of a file's rows; the file has the rest."""
  commits = ", ".join(sorted({r["commit"] for r in found["rows"].values()}))
  budget_s = found["stamp"].get("budget_s")
  more = f"; searches of {budget_s:g} s" if budget_s else ""
  if "evaluations" in found["stamp"]:
    more = f"; searches of {found['stamp']['evaluations']:,} placements"
  return f"*Commit {commits}{more}.*"


def geometric_mean(values: Iterable[float]) -> float:
  """Geometric mean of positive values; NaN without values."""
  logs = [math.log(value) for value in values]
  return math.exp(statistics.fmean(logs)) if logs else math.nan


def mean_and_least(values: Sequence[float]) -> str:
  """Returns a cell with the geometric mean, and the least value."""
  if not values:
    return "-"
  return f"{geometric_mean(values):.2f} ({min(values):.2f})"


def put_tables(text: str, tables: Mapping[str, str]) -> str:
  """Returns a page with its tables replaced.

  A table stands between `<!-- benchmark: NAME -->` and `<!-- end -->`. One
  whose name has no table stays.
  """

  def put(found: re.Match[str]) -> str:
    if found[2] not in tables:
      return found[0]
    return f"{found[1]}\n{tables[found[2]]}\n{found[3]}"

  pattern = r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)"
  return re.sub(pattern, put, text, flags=re.DOTALL)

"""Runs the benchmarks, and writes every table of README and docs/results.md.

Each benchmark is a process of its own that writes one JSON file, and goes on
where it was cut off. Then the tables of all files that are there replace those
between the markers `<!-- benchmark: NAME -->` and `<!-- end -->` of the pages.
`--quick` tries everything in a few minutes: tiny settings, files and copies of
the pages in `--results_dir`. Rows are stale if costs, policy or code that they
measure changed since; `--renew` measures them again.

  python -m benchmarks.run_all --data_dir=DATA           # a night
  python -m benchmarks.run_all --only=speed,auto --hours=2
  python -m benchmarks.run_all --only=tables             # measures nothing
  python -m benchmarks.run_all --only=check              # fails by stale rows
  python -m benchmarks.run_all --quick --results_dir=FOLDER
"""

import contextlib
import dataclasses
import importlib
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.formats.files import write_bytes
from tfplace.formats.json_file import write_json

PAGES = ("README.md", "docs/results.md")


_STEPS = ("cost", "extraction", "variants")


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """One benchmark.

  Attributes:
    module: its program.
    quick: flags of a try.
    data: file of `--data_dir` that it needs.
    out: flag and ending of its file.
    flags: flags of a run.
    measures: folders of the package whose code its rows measure.
  """

  module: str
  quick: tuple[str, ...] = ()
  data: str | None = None
  out: tuple[str, str] = ("out", "json")
  flags: tuple[str, ...] = ()
  measures: tuple[str, ...] = (*_STEPS, "hardware", "placers", "simulate")


_SMALL = ("--budget_s=1",)
BENCHMARKS = {
  "speed": Benchmark(
    "benchmarks.run_speed",
    ("--budget_s=0.5", "--ops=1000"),
    measures=("simulate", "placers/search"),
  ),
  "auto": Benchmark(
    "benchmarks.run_auto",
    (*_SMALL, "--models=unet", "--clusters=v100x2", "--microbatches=1,2"),
  ),
  "fusion": Benchmark(
    "benchmarks.run_fusion",
    (
      *("--evaluations=5", "--models=gpt_small", "--clusters=v100x2"),
      "--precisions=fp32",
    ),
  ),
  "policy": Benchmark(
    "benchmarks.run_policy",
    ("--rows=^mobilenet", "--budgets_s=1", "--alone_s=1"),
    measures=("cost", "hardware", "learned", "placers", "simulate"),
  ),
  "policy_published": Benchmark(
    "benchmarks.run_policy",
    ("--rows=^transformer_xl, layers 2", "--alone_s=1"),
    flags=("--set=published", "--budgets_s="),
    measures=("cost", "hardware", "learned", "placers", "simulate"),
  ),
  "kernels": Benchmark(
    "benchmarks.fit_kernel_costs",
    data="gpu_kernels.csv.gz",
    measures=("cost/kernels",),
  ),
  "published_steps": Benchmark(
    "benchmarks.run_published_steps",
    ("--models=inception_v3",),
    "gpu_steps.csv",
    measures=(*_STEPS, "hardware", "simulate"),
  ),
  "plans": Benchmark(
    "benchmarks.run_plans",
    ("--sets=amp",),
    "plans",
    measures=("cost", "hardware", "simulate"),
  ),
  "measured": Benchmark(
    "benchmarks.run_measured",
    (
      *(*_SMALL, "--models=two_towers", "--microbatches=2", "--rounds=1"),
      *("--steps=2", "--measure_s=5"),
    ),
    measures=("measure", "placers", "variants"),
  ),
  "users_models": Benchmark(
    "benchmarks.run_users_models",
    (*_SMALL, "--models=vae", "--cluster=v100x2"),
    measures=("extraction", "keras", "plan", "variants"),
  ),
  "timeline": Benchmark(
    "tfplace.bin.place",
    out=("timeline", "png"),
    flags=("--model=nmt", "--cluster=k80x4", "--budget_s=20"),
  ),
}
_TABLES, _CHECK = "tables", "check"

OPTIONS = Options("run_all", __doc__)
OPTIONS.add(
  "only",
  [*BENCHMARKS],
  f"Benchmarks to run; {_TABLES!r} only writes tables, {_CHECK!r} only fails by"
  " stale rows.",
)
OPTIONS.add("hours", 1e6, "Most hours; the tables are of what is done.")
OPTIONS.add("renew", False, "Measures stale rows again.")
OPTIONS.add("quick", False, "Tries everything with tiny settings.")
OPTIONS.add(
  "data_dir",
  None,
  "Folder of gpu_kernels.csv.gz, gpu_steps.csv and plans; what needs them is"
  " left out without it.",
)
OPTIONS.add("results_dir", str(lib.RESULTS), "Folder of the JSON files.")


def main(values: flags.FlagValues) -> None:
  """Runs the benchmarks, then writes the tables.

  Raises:
    UsageError: an unknown benchmark, or a try in the folder of the results.
  """
  lib.check_names("only", values.only, [*BENCHMARKS, _TABLES, _CHECK])
  folder = pathlib.Path(values.results_dir)
  if values.only == [_CHECK]:
    return check(folder)
  if values.quick and folder.resolve() == lib.RESULTS.resolve():
    raise cli.UsageError("--quick needs a --results_dir of its own")
  folder.mkdir(parents=True, exist_ok=True)
  end = time.monotonic() + 3600 * values.hours
  failed = [
    name
    for name in values.only
    if name in BENCHMARKS and not run(values, folder, name, end)
  ]
  pages = folder if values.quick else lib.ROOT
  write_pages(folder, pages)
  if failed:
    raise cli.UsageError(f"failed: {', '.join(failed)}")


def check(folder: pathlib.Path) -> None:
  """Prints which rows of a folder's files are stale, and why.

  Raises:
    UsageError: some are.
  """
  stale = []
  for name in BENCHMARKS:
    for why, keys in _stale(folder, name).items():
      print(f"{name}: {len(keys)} rows are of {why}")
      stale.append(name)
  if stale:
    names = ",".join(dict.fromkeys(stale))
    raise cli.UsageError(f"stale rows: measure with --renew --only={names}")


def _stale(folder: pathlib.Path, name: str) -> dict[str, list[str]]:
  path = folder / f"{name}.json"
  if not path.exists():
    return {}
  measures = [f"tfplace/{each}" for each in BENCHMARKS[name].measures]
  return lib.stale(lib.load(path), measures)


@contextlib.contextmanager
def _without_stale(folder: pathlib.Path, name: str) -> Iterator[None]:
  """Removes stale rows from a file; puts back those not measured again.

  Rows of other costs or another policy are put back only if none is measured.
  """
  dropped = {key for keys in _stale(folder, name).values() for key in keys}
  if not dropped:
    yield
    return
  path = folder / f"{name}.json"
  found = lib.load(path)
  rows = {key: row for key, row in found["rows"].items() if key not in dropped}
  path.unlink()
  if rows:
    write_json(path, {**found, "rows": rows})
  try:
    yield
  finally:
    new = lib.load(path) if path.exists() else found
    if new["stamp"] == found["stamp"]:
      write_json(path, {**new, "rows": {**found["rows"], **new["rows"]}})


def run(
  values: flags.FlagValues, folder: pathlib.Path, name: str, end: float
) -> bool:
  """Runs a benchmark until the monotonic clock's `end`; whether it ended well.

  Rows that are not measured by then are left out.
  """
  found = BENCHMARKS[name]
  flag, ending = found.out
  command = [sys.executable, "-m", found.module, *found.flags]
  command.append(f"--{flag}={folder / name}.{ending}")
  if found.data is not None:
    if values.data_dir is None:
      print(f"{name}: left out, it needs --data_dir", flush=True)
      return True
    command.append(f"--data={pathlib.Path(values.data_dir) / found.data}")
  if values.quick:
    command += found.quick
  left_s = end - time.monotonic()
  if left_s <= 0:
    print(f"{name}: left out, the hours are over", flush=True)
    return True
  print("+", *command[1:], flush=True)
  renewed = (
    _without_stale(folder, name) if values.renew else contextlib.nullcontext()
  )
  try:
    with renewed:
      done = subprocess.run(command, cwd=lib.ROOT, check=False, timeout=left_s)
  except subprocess.TimeoutExpired:
    print(f"{name}: cut off, the hours are over", flush=True)
    return True
  return done.returncode == 0


def write_pages(folder: pathlib.Path, target: pathlib.Path) -> None:
  """Puts the tables of a folder's files into the pages of another folder."""
  tables: dict[str, str] = {}
  for name, benchmark in BENCHMARKS.items():
    path = folder / f"{name}.json"
    if path.exists():
      module = importlib.import_module(benchmark.module)
      tables |= module.tables(lib.load(path))
  for page in PAGES:
    text = (lib.ROOT / page).read_text(encoding="utf-8")
    path = target / page
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, lib.put_tables(text, tables).encode())
  print(f"wrote {', '.join(sorted(tables))} into {', '.join(PAGES)}")


if __name__ == "__main__":
  OPTIONS.run(main)

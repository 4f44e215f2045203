"""Runs the benchmarks, and writes every table of README and docs/results.md.

Each benchmark is a process of its own that writes one JSON file, and goes on
where it was cut off. Then the tables of all files that are there replace those
between the markers `<!-- benchmark: NAME -->` and `<!-- end -->` of the pages.
`--quick` tries everything in a few minutes: tiny settings, files and copies of
the pages in `--results_dir`.

  python -m benchmarks.run_all --data_dir=DATA           # a night
  python -m benchmarks.run_all --only=speed,auto
  python -m benchmarks.run_all --only=tables             # measures nothing
  python -m benchmarks.run_all --quick --results_dir=FOLDER
"""

import dataclasses
import importlib
import pathlib
import subprocess
import sys

from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.formats.files import write_bytes

PAGES = ("README.md", "docs/results.md")


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """One benchmark.

  Attributes:
    module: its program.
    quick: flags of a try.
    data: file of `--data_dir` that it needs.
    out: flag and ending of its file.
    flags: flags of a run.
  """

  module: str
  quick: tuple[str, ...] = ()
  data: str | None = None
  out: tuple[str, str] = ("out", "json")
  flags: tuple[str, ...] = ()


_SMALL = ("--budget_s=1",)
BENCHMARKS = {
  "speed": Benchmark("benchmarks.run_speed", ("--budget_s=0.5", "--ops=1000")),
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
    ("--set=training", "--rows=^synthetic 2 ", "--budgets_s=1", "--alone_s=1"),
  ),
  "kernels": Benchmark("benchmarks.fit_kernel_costs", (), "gpu_kernels.csv.gz"),
  "published_steps": Benchmark(
    "benchmarks.run_published_steps",
    ("--models=inception_v3",),
    "gpu_steps.csv",
  ),
  "plans": Benchmark("benchmarks.run_plans", ("--sets=amp",), "plans"),
  "measured": Benchmark(
    "benchmarks.run_measured",
    (
      *(*_SMALL, "--models=two_towers", "--microbatches=2", "--rounds=1"),
      *("--steps=2", "--measure_s=5"),
    ),
  ),
  "users_models": Benchmark(
    "benchmarks.run_users_models",
    (*_SMALL, "--models=vae", "--cluster=v100x2"),
  ),
  "timeline": Benchmark(
    "tfplace.bin.place",
    out=("timeline", "png"),
    flags=("--model=nmt", "--cluster=k80x4", "--budget_s=20"),
  ),
}
_TABLES = "tables"

OPTIONS = Options("run_all", __doc__)
OPTIONS.add(
  "only", [*BENCHMARKS], f"Benchmarks to run; {_TABLES!r} for none of them."
)
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
  lib.check_names("only", values.only, [*BENCHMARKS, _TABLES])
  folder = pathlib.Path(values.results_dir)
  if values.quick and folder.resolve() == lib.RESULTS.resolve():
    raise cli.UsageError("--quick needs a --results_dir of its own")
  folder.mkdir(parents=True, exist_ok=True)
  failed = [
    name
    for name in values.only
    if name != _TABLES and not run(values, folder, name)
  ]
  pages = folder if values.quick else lib.ROOT
  write_pages(folder, pages)
  if failed:
    raise cli.UsageError(f"failed: {', '.join(failed)}")


def run(values: flags.FlagValues, folder: pathlib.Path, name: str) -> bool:
  """Runs a benchmark; returns whether it ended well."""
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
  print("+", *command[1:], flush=True)
  return subprocess.run(command, cwd=lib.ROOT, check=False).returncode == 0


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

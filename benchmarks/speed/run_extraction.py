"""Seconds of extraction: the first by stage, the second, and as a file.

Every row is a process of its own, with an empty cache of its own. The second
use is a new process, its imports included. Prints a table and writes JSON.

  python -m benchmarks.speed.run_extraction
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from absl import flags
from rich import console, table

from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.core.presets import cluster_preset
from tfplace.formats import load_graph, save_graph
from tfplace.formats.json_file import write_json
from tfplace.plan import graph_cache, sources

SMALL = "units=64,vocabulary=500"  # as many ops, less to allocate
OPTIONS = Options("run_extraction", __doc__)
_MODELS = flags.DEFINE_multi_string(
  "model",
  [
    "inception_v3",
    "nmt",
    f"nmt:layers=4,length=70,{SMALL}",
    f"nmt:layers=8,length=70,{SMALL}",
    "rnnlm_8",
    "gnmt_8",
  ],
  "Zoo model, with sizes after a colon; may be repeated.",
  flag_values=OPTIONS.values,
)
_CLUSTER = OPTIONS.add("cluster", "p100x8", "Whose kinds are costed.")
_OUT = OPTIONS.out("extraction.json")
_CHILD = OPTIONS.add("child", None, "Cache of one use, for a process.")
# Stage as it is told -> column.
COLUMNS = {
  "starting": "TensorFlow",
  "building": "build",
  "tracing": "trace",
  "inlining": "flatten",
  "kernels": "kernels",
  "shapes": "shapes",
  "costs": "costs",
}


class Stages:
  """Seconds by stage."""

  def __init__(self) -> None:
    self.seconds = dict.fromkeys(COLUMNS.values(), 0.0)
    self._column: str | None = None
    self._began = 0.0

  def __call__(self, what: str, count: Callable[[], int] | None = None) -> None:
    self.end()
    if "tensorflow" not in sys.modules:
      self._column = COLUMNS["starting"]
      cli.load_tensorflow()
      self.end()
    self._column = COLUMNS[what.split()[0]]

  def end(self) -> None:
    now = time.perf_counter()
    if self._column is not None:
      self.seconds[self._column] += now - self._began
    self._began = now


def peak_mb() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def use(model: str, folder: str) -> dict:
  """One use of a graph, in this process."""
  name, _, text = model.partition(":")
  pairs = [item.split("=") for item in text.split(",") if item]
  stages = Stages()
  began = time.perf_counter()
  graph, _ = sources.load_or_extract(
    "model",
    name,
    cluster_preset(_CLUSTER.value),
    sizes={key: int(value) for key, value in pairs},
    cache=graph_cache.GraphCache(folder),
    on_stage=stages,
  )
  stages.end()
  result = {
    "ops": graph.num_ops,
    "edges": graph.num_edges,
    "seconds": time.perf_counter() - began,
    "by_stage": stages.seconds,
    "peak_mb": peak_mb(),
    "tensorflow": "tensorflow" in sys.modules,
  }
  if result["tensorflow"]:
    return result
  path = os.path.join(folder, "graph.json.gz")  # for the second use only
  began = time.perf_counter()
  save_graph(graph, path)
  saved = time.perf_counter()
  load_graph(path)
  result["save_json_s"] = saved - began
  result["load_json_s"] = time.perf_counter() - saved
  return result


def in_a_process(model: str, folder: str) -> dict:
  command = [sys.executable, "-m", __spec__.name, f"--model={model}"]
  began = time.perf_counter()
  done = subprocess.run(
    [*command, f"--child={folder}", f"--cluster={_CLUSTER.value}"],
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  result = json.loads(done.stdout.splitlines()[-1])
  result["process_s"] = time.perf_counter() - began
  return result


def measured_row(model: str) -> dict:
  with tempfile.TemporaryDirectory() as folder:
    first, second = (in_a_process(model, folder) for _ in range(2))
  return {"model": model, "first": first, "second": second}


def print_table(rows: list[dict]) -> None:
  columns = ["model", "ops", *COLUMNS.values(), "first use", "peak MB"]
  grid = table.Table(title="Extraction, seconds")
  for column in [*columns, "second use", "save .json.gz", "load"]:
    grid.add_column(column, justify="right")
  for row in rows:
    first, second = row["first"], row["second"]
    files = [second["save_json_s"], second["load_json_s"]]
    own = second["process_s"] - sum(files)
    seconds = [*first["by_stage"].values(), first["seconds"]]
    grid.add_row(
      row["model"],
      f"{first['ops']:,}",
      *(f"{value:.1f}" for value in seconds),
      f"{first['peak_mb']:.0f}",
      *(f"{value:.2f}" for value in [own, *files]),
    )
  screen = console.Console()
  screen.width = max(screen.width, 160)
  screen.print(grid)


def main(_: flags.FlagValues) -> None:
  if _CHILD.value is not None:
    print(json.dumps(use(_MODELS.value[0], _CHILD.value)))
    return
  rows = []
  for model in _MODELS.value:
    rows.append(measured_row(model))
    print(model, f"{rows[-1]['first']['seconds']:.1f} s", flush=True)
    write_json(_OUT.value, {"cluster": _CLUSTER.value, "rows": rows})
  print_table(rows)


if __name__ == "__main__":
  OPTIONS.run(main)

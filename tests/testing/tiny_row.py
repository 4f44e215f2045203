"""Runs a benchmark of the published rows on one tiny row instead."""

import pathlib
import subprocess
import sys

import tfplace

_SIZES = {"layers": 1, "units": 4, "vocabulary": 9, "length": 2}
_RUN = """
import importlib, sys
from benchmarks.lib import published
benchmark = importlib.import_module("benchmarks." + sys.argv.pop(1))
tiny = eval(sys.argv.pop(1))
published.ROWS = (published.Row("tiny", "nmt", 2, {}, tiny, 2, ("p100",)),)
benchmark.OPTIONS.run(benchmark.main)
"""


def run(benchmark: str, *arguments: str) -> str:
  """Returns what a benchmark prints; it must not fail."""
  done = subprocess.run(
    [
      *(sys.executable, "-c", _RUN, benchmark, repr(_SIZES)),
      *arguments,
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


def problem(cache_dir: pathlib.Path) -> tfplace.Problem:
  """Problem of the tiny row, from the cache that the benchmark filled."""
  cluster = tfplace.cluster_preset("p100x2")
  graph = tfplace.extract(
    "nmt", cluster, batch_size=2, sizes=_SIZES, cache_dir=cache_dir
  )
  return tfplace.Problem(graph, cluster)

"""Runs a benchmark of the published rows on one tiny row instead."""

import pathlib
import subprocess
import sys

import published

BENCHMARKS = pathlib.Path(published.__file__).parent

_RUN = """
import importlib, sys
sys.path.insert(0, sys.argv.pop(1))
import published
benchmark = importlib.import_module(sys.argv.pop(1))
tiny = dict(layers=1, units=4, vocabulary=9, length=2)
published.ROWS = (published.Row("tiny", "nmt", 2, {}, tiny, 2, ("p100",)),)
benchmark.app.run(benchmark.main)
"""


def run(benchmark: str, *arguments: str) -> str:
  """What the benchmark of that name prints; it must not fail."""
  done = subprocess.run(
    [sys.executable, "-c", _RUN, str(BENCHMARKS), benchmark, *arguments],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout

"""Flags of the benchmarks that run the published rows on one kind of GPU."""

import re

import published
from absl import app, flags

from tfplace import cache, extraction
from tfplace.graph import Problem
from tfplace.graph.presets import cluster_preset

ROWS = flags.DEFINE_string("rows", "", "Pattern of the rows' labels.")
GPU = flags.DEFINE_string("gpu", "p100", "GPU of the presets.")
CACHE = flags.DEFINE_string(
  "graph_cache_dir", cache.default_directory(), "Extracted graphs, or empty."
)


def rows() -> list[published.Row]:
  """The rows that the flags name.

  Raises:
    UsageError: there is none.
  """
  found = [
    row
    for row in published.ROWS
    if re.search(ROWS.value, row.label) and GPU.value in row.gpus
  ]
  if not found:
    raise app.UsageError(
      f"--rows={ROWS.value!r} names no row of --gpu={GPU.value}"
    )
  return found


def cluster_of(row: published.Row) -> str:
  """Name of the row's preset."""
  return row.cluster(GPU.value)


def problem_of(row: published.Row) -> Problem:
  """The row's training step on its devices; from the cache if it is there."""
  graph = extraction.extract(
    row.model,
    cluster_of(row),
    batch_size=row.batch_size,
    sizes=row.sizes,
    cache_dir=CACHE.value,
  )
  return Problem(graph, cluster_preset(cluster_of(row)))

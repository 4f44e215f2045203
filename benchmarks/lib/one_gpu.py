"""Rows and flags of the benchmarks that run on one kind of GPU.

The rows are the published ones, or the test members of synthetic families.
"""

import pathlib
import re
from collections.abc import Iterable

from absl import flags

from benchmarks.lib import published
from benchmarks.lib.command import add_flag
from tfplace import formats
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.models import families
from tfplace.plan import graph_cache, sources

# Of `nmt`, members of one length are much alike: these lengths test.
HELD_OUT_LENGTHS = (8, 14)
MEMBERS_DEVICES = 4  # GPUs for a member of a synthetic family

VALUES = flags.FlagValues()
ROWS = add_flag(VALUES, "rows", "", "Pattern of the rows' labels.")
TEST_MEMBERS = add_flag(
  VALUES,
  "test_members",
  [],
  "Synthetic families whose test members are the rows, on"
  f" {MEMBERS_DEVICES} GPUs each, instead of the published rows:"
  f" {', '.join(families.FAMILIES)}.",
)
GPU = add_flag(VALUES, "gpu", "p100", "GPU of the presets.")
CACHE = add_flag(
  VALUES,
  "graph_cache_dir",
  graph_cache.default_directory(),
  "Extracted graphs, or empty.",
)


def rows() -> list[published.Row]:
  """The rows that the flags name.

  Raises:
    UsageError: there is none.
  """
  members = [row for name in TEST_MEMBERS.value for row in members_of(name)]
  found = [
    row
    for row in members or published.ROWS
    if re.search(ROWS.value, row.label) and GPU.value in row.gpus
  ]
  if not found:
    raise cli.UsageError(
      f"--rows={ROWS.value!r} names no row of --gpu={GPU.value}"
    )
  return found


def members_of(
  family: str, indices: Iterable[int] | None = None
) -> list[published.Row]:
  """Members of a synthetic family, of those that test if none are named.

  Raises:
    UsageError: there is no such family.
  """
  if family not in families.FAMILIES:
    raise cli.UsageError(
      f"--test_members names the unknown family {family!r}: choose from"
      f" {', '.join(families.FAMILIES)}"
    )
  return [
    published.Row(
      f"{family} {index}",
      families.FAMILIES[family],
      MEMBERS_DEVICES,
      published={},
      sizes={"index": index},
    )
    for index in (families.split("test") if indices is None else indices)
  ]


def unseen_split(family: str) -> tuple[list[int], list[int]]:
  """Indices of the members that train, and of those that test.

  No test member of `nmt` has the length of one that trains.
  """
  if family != "nmt":
    return list(families.split("train")), list(families.split("test"))
  parts: tuple[list[int], list[int]] = ([], [])
  for index in range(families.MEMBERS):
    is_held_out = families.sizes(index)["length"] in HELD_OUT_LENGTHS
    parts[is_held_out].append(index)
  return parts


def cluster_of(row: published.Row) -> str:
  """Name of the row's preset."""
  return row.cluster(GPU.value)


def problem_of(row: published.Row) -> Problem:
  """The row's training step on its devices; from the cache if it is there."""
  graph = sources.extract(
    row.model,
    cluster_of(row),
    batch_size=row.batch_size,
    sizes=row.sizes,
    cache_dir=CACHE.value,
  )
  return Problem(graph, cluster_preset(cluster_of(row)))


def graph_file(row: published.Row, folder: pathlib.Path) -> pathlib.Path:
  """The file of a row's training graph, made when it is first needed."""
  name = re.sub(r"\W+", "_", f"{row.label}_{cluster_of(row)}")
  path = folder / f"{name}.json.gz"
  if not path.exists():
    folder.mkdir(parents=True, exist_ok=True)
    formats.save_graph(problem_of(row).graph, path)
  return path

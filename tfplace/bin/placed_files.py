"""The files of a placement: flags, checks before the work, and writing."""

import os

from absl import flags

from tfplace.bin import cli, sources
from tfplace.graph.placement import Placement

_FILES = ("output", "output_graph_def", "output_saved_model")


def define_file_flags(values: flags.FlagValues) -> None:
  """Adds `--output`, `--output_graph_def` and `--output_saved_model`."""
  flags.DEFINE_string(
    "output", None, "tfplace.placement.v1 file to write.", flag_values=values
  )
  flags.DEFINE_string(
    "output_graph_def",
    None,
    "GraphDef to write (.pb or .pbtxt), every node with its device.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "output_saved_model",
    None,
    "Directory to write, a copy of --saved_model that serves as placed.",
    flag_values=values,
  )


def check_files(values: flags.FlagValues) -> None:
  """Refuses, before the work, what could not be written after it.

  Raises:
    UsageError: names the flag or the path.
  """
  for flag in _FILES:
    cli.check_writable(values[flag].value)
  if values.output_graph_def and sources.chosen_source(values) == "graph":
    raise cli.UsageError(
      "--output_graph_def needs a TensorFlow model; --graph has only costs"
    )
  if not values.output_saved_model:
    return
  if not values.saved_model:
    raise cli.UsageError("--output_saved_model is a copy of --saved_model")
  if os.path.lexists(values.output_saved_model):
    raise cli.UsageError(f"{values.output_saved_model!r} is there already")


def needs_trace(values: flags.FlagValues) -> bool:
  """Whether the op graph alone will not do."""
  return bool(values.output_graph_def)


def write_files(
  values: flags.FlagValues, placement: Placement, source: sources.Source
) -> None:
  """Writes what was asked for.

  Raises:
    TfplaceError: a file cannot be written; it is not there then.
  """
  if values.output:
    placement.save(values.output)
  if values.output_graph_def and source.traced is not None:
    from tfplace.apply import write_placed_graph_def  # imports TensorFlow

    write_placed_graph_def(source.traced, placement, values.output_graph_def)
  if values.output_saved_model:
    from tfplace.apply import write_placed_saved_model

    cli.load_tensorflow()
    with cli.showing_progress(f"Writing {values.output_saved_model}"):
      write_placed_saved_model(
        values.saved_model,
        placement,
        values.output_saved_model,
        values.batch_size,
        allow_side_effects=values.allow_side_effects,
      )

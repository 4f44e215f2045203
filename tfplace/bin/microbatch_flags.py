"""Flags for the variants of a training step."""

from absl import flags

from tfplace.bin import cli
from tfplace.errors import shown
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.microbatches import VariantConfig, check_in_flight
from tfplace.graph.recompute import ALL, NONE, recompute_config


def define_flags(values: flags.FlagValues) -> None:
  """Adds the flags for microbatches and recomputation."""
  text = (
    "Number of microbatches of the training step, each with its own forward and"
    " backward pass, or the examples of each, such as 10,10,2,2. The step"
    " computes the same result as the whole step. 1 leaves the step whole. auto"
    " (tfplace-place only) chooses number, sizes and --max_in_flight together"
    " with the placement. A given placement determines them."
  )
  cli.define(values, "microbatches", text, "1")
  text = (
    "Maximum number of microbatches in flight: another forward pass starts only"
    " after a backward pass has ended. Default: all."
  )
  cli.define(values, "max_in_flight", text)
  text = (
    "Let BatchNormalization compute its statistics for each microbatch, as"
    " replicated training does. Otherwise, a step with BatchNormalization"
    " cannot be split."
  )
  cli.define(values, "allow_batch_statistics", text, False)
  text = (
    "Activations that the backward pass computes again instead of keeping them:"
    " none, all, auto (tfplace-place only: as few as fit, where memory is"
    " short), or layers and patterns such as block_*, separated by commas. A"
    " given placement determines them."
  )
  cli.define(values, "recompute", text, [NONE])


def chosen(values: flags.FlagValues) -> list[str]:
  """Returns the given flags that leave a choice to planning."""
  names = ("microbatches", "recompute")
  return [f"--{n}={AUTO}" for n in names if values[n].value in (AUTO, [AUTO])]


def config(values: flags.FlagValues) -> VariantConfig:
  """Returns the requested microbatches, or the whole step for "auto".

  Raises:
    UsageError: a value is not a whole number of at least 1.
  """
  names = values.recompute
  recompute = names[0] if names in ([NONE], [ALL], [AUTO]) else names
  return VariantConfig.from_microbatches(
    1 if values.microbatches == AUTO else _microbatches(values),
    _count(values, "max_in_flight"),
    values.allow_batch_statistics,
    recompute_config(recompute, may_choose=True),
  )


def arguments(values: flags.FlagValues) -> list[str]:
  """Returns the given flags, for the command line of another command."""
  names = ("microbatches", "max_in_flight", "allow_batch_statistics")
  result = [f"--{n}={values[n].value}" for n in names if values[n].present]
  if values["recompute"].present:
    result.append(f"--recompute={','.join(values.recompute)}")
  return result


def check_not_chosen(values: flags.FlagValues) -> None:
  """Raises UsageError for a choice that only tfplace-place makes."""
  if names := chosen(values):
    raise cli.UsageError(
      f"{' and '.join(names)}: only tfplace-place chooses it, together with the"
      " placement; give a number or layers, or leave it out where a placement"
      " is given"
    )


def check_given(values: flags.FlagValues) -> None:
  """Checks that `--max_in_flight` has `--microbatches` beside it.

  Raises:
    UsageError: the flag would be ignored.
  """
  if values["max_in_flight"].present and not values["microbatches"].present:
    raise cli.UsageError(
      f"--max_in_flight={values.max_in_flight} has no effect without"
      " --microbatches; give both"
    )
  if values.microbatches != AUTO:
    check_in_flight(config(values))


def _microbatches(values: flags.FlagValues) -> int | list[int]:
  """Returns the number of microbatches, or the size of each."""
  text = values.microbatches
  if "," not in text:
    return _count(values, "microbatches") or 1
  sizes = text.split(",")
  wrong = [s for s in sizes if not cli.is_count(s) or int(s) < 1]
  if wrong:
    raise cli.UsageError(
      f"--microbatches={shown(text)}: the size {shown(wrong[0])} must be a"
      " whole number of at least 1"
    )
  return [int(size) for size in sizes]


def _count(values: flags.FlagValues, flag: str) -> int | None:
  text = values[flag].value
  if text is None:
    return None
  if not cli.is_count(text) or int(text) < 1:
    choice = ", or auto (tfplace-place only)" if flag == "microbatches" else ""
    raise cli.UsageError(
      f"--{flag}={shown(text)}: it must be a whole number of at least 1{choice}"
    )
  return int(text)


def check_agrees(values: flags.FlagValues, planned: VariantConfig) -> None:
  """Checks that the given flags agree with the microbatches of `--placement`.

  Raises:
    UsageError: a flag contradicts the placement.
  """
  asked, path = config(values), values.placement
  if values["recompute"].present and (
    asked.recompute.is_none != planned.recompute.is_none
  ):
    what = "nothing" if planned.recompute.is_none else "activations"
    raise cli.UsageError(
      f"--recompute={','.join(values.recompute)}, and placement {path!r}"
      f" recomputes {what}: leave the flag out"
    )
  sizes_agree = (asked.count, asked.sizes) == (planned.count, planned.sizes)
  agreements = {
    "microbatches": sizes_agree,
    "max_in_flight": asked.in_flight == planned.in_flight,
  }
  for flag, agrees in agreements.items():
    if values[flag].present and not agrees:
      raise cli.UsageError(
        f"--{flag}={values[flag].value}, and placement {path!r} is of"
        f" {planned.words} with {planned.in_flight} in flight:"
        " leave the flag out"
      )

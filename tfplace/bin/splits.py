"""The flags that say how a training step is split into microbatches."""

from absl import flags

from tfplace.bin import cli
from tfplace.core.microbatches import AUTO, MicrobatchConfig
from tfplace.errors import shown


def define_flags(values: flags.FlagValues) -> None:
  """Adds what splits the training step of a Keras model."""
  flags.DEFINE_string(
    "microbatches",
    "1",
    "Parts into which the training step splits the batch, each with a forward"
    " and a backward pass of its own; the step computes what the whole one"
    " does. 1 leaves it whole; auto (of tfplace-place) chooses their number and"
    " how many are in flight with the placement. Where a placement is given,"
    " it says how its step is split.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "max_in_flight",
    None,
    "Microbatches that may be under way at once: the forward pass of another"
    " starts only when a backward pass has ended. All where left out.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    "allow_batch_statistics",
    False,
    "Let BatchNormalization compute its statistics for each microbatch, as"
    " replicated training does; else a step that has it is not split.",
    flag_values=values,
  )


def is_chosen(values: flags.FlagValues) -> bool:
  """Whether the number of microbatches is chosen with the placement."""
  return bool(values.microbatches == AUTO)


def config(values: flags.FlagValues) -> MicrobatchConfig:
  """What the flags say of microbatches; what is to be chosen is left whole.

  Raises:
    UsageError: no whole number of at least 1.
  """
  count = None if is_chosen(values) else _count(values, "microbatches")
  return MicrobatchConfig(
    count or 1,
    _count(values, "max_in_flight"),
    values.allow_batch_statistics,
  )


def arguments(values: flags.FlagValues) -> list[str]:
  """The flags that are given, for the command line of another command."""
  names = ("microbatches", "max_in_flight", "allow_batch_statistics")
  return [f"--{n}={values[n].value}" for n in names if values[n].present]


def check_given(values: flags.FlagValues) -> None:
  """Refuses `--max_in_flight` where nothing says into what a step is split.

  Raises:
    UsageError: it would be ignored.
  """
  if values["max_in_flight"].present and not values["microbatches"].present:
    raise cli.UsageError(
      f"--max_in_flight={values.max_in_flight} is of a step in microbatches:"
      " give --microbatches, too"
    )


def _count(values: flags.FlagValues, flag: str) -> int | None:
  text = values[flag].value
  if text is None:
    return None
  if not cli.is_count(text) or int(text) < 1:
    raise cli.UsageError(
      f"--{flag}={shown(text)}: it must be a whole number of at least 1"
    )
  return int(text)


def check_says(
  values: flags.FlagValues, found: MicrobatchConfig, path: str
) -> None:
  """Checks that the flags, where they are given, say what a placement does.

  Raises:
    UsageError: they say something else.
  """
  asked = config(values)
  pairs = {
    "microbatches": (asked.count, found.count),
    "max_in_flight": (asked.in_flight, found.in_flight),
  }
  for flag, (wanted, there) in pairs.items():
    if values[flag].present and wanted != there:
      raise cli.UsageError(
        f"--{flag}={values[flag].value}, and placement {path!r} is of"
        f" {found.count} microbatches with {found.in_flight} in flight:"
        " leave the flag out"
      )

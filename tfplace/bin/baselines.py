"""Baseline files of tfplace-place: writes one, or holds a step to one."""

import dataclasses
import os
import re

from absl import flags

from tfplace import formats
from tfplace.bin import cli, microbatch_flags, sources
from tfplace.core import order as orders
from tfplace.core.baseline import Baseline, LayerCost
from tfplace.core.microbatches import MicrobatchConfig, microbatches_of
from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.errors import TfplaceError, shown
from tfplace.formats import json_file
from tfplace.plan import PlanConfig, Stages, StepVariant
from tfplace.plan import baseline as baselines
from tfplace.plan import sources as plan_sources
from tfplace.plan.planner import Source
from tfplace.plan.search import PlanReport
from tfplace.report.names import short_names, shorten

_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)")


class RegressionError(TfplaceError):
  """A step that is slower or larger than its baseline allows."""


def define_flags(values: flags.FlagValues) -> None:
  """Adds `--output_baseline`, `--check` and `--tolerance`."""
  flags.DEFINE_string(
    "output_baseline",
    None,
    "tfplace.baseline.v1 file to write: step time, peak memory and layers of"
    " the placed step, for --check.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "check",
    None,
    "tfplace.baseline.v1 file. The command fails, and names the layer, if the"
    " step time or a device's peak memory grew by more than --tolerance. The"
    " search starts from the file's placement.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "tolerance",
    "3%",
    "Growth that --check allows, such as 3% or 0.03.",
    flag_values=values,
  )


@dataclasses.dataclass(frozen=True)
class Check:
  """A baseline that a step is held to.

  Attributes:
    path: file of the baseline.
    baseline: its content.
    tolerance: share by which a figure may grow.
    text: the tolerance as it was given.
  """

  path: str
  baseline: Baseline
  tolerance: float
  text: str

  def source(self, source: Source) -> Source:
    """Returns a source that refuses other steps than the baseline's."""
    return _CheckedSource(source, self)

  def config(self, config: PlanConfig, values: flags.FlagValues) -> PlanConfig:
    """Returns settings that start from the baseline and its step variant.

    Raises:
      UsageError: the flags ask for another step variant.
    """
    start = self.baseline.assignments if config.searches else None
    return dataclasses.replace(
      config,
      init_placement=start,
      microbatches=self._microbatches(config.microbatches, values),
      chooses_microbatches=False,
      chooses_recomputation=False,
      chooses_offload=False,
    )

  def _microbatches(
    self, asked: MicrobatchConfig, values: flags.FlagValues
  ) -> MicrobatchConfig:
    """Returns the step variant of the baseline; what is given must agree."""
    kind = sources.chosen_source(values, may_choose=True)
    if kind not in plan_sources.MICROBATCH_KINDS:
      return asked
    found = microbatches_of(self.baseline.assignments)
    if not microbatch_flags.chosen(values):
      microbatch_flags.check_agrees(values, found, self.path)
    given = asked.recompute
    return dataclasses.replace(
      found,
      allow_batch_statistics=asked.allow_batch_statistics,
      # Layers that were named stay, since ops may have come and gone.
      recompute=found.recompute if given.is_none else given,
      offload=found.offload if asked.offload.is_none else asked.offload,
    )

  def failure(self, report: PlanReport) -> RegressionError | None:
    """Returns what grew too much, or prints that nothing did."""
    placement = report.best.placement
    found = baselines.compare(self.baseline, placement, self.tolerance)
    if found.growths:
      names = [device.name for device in self.baseline.devices]
      short = dict(zip(names, short_names(names), strict=True))
      told = [_sentence(growth, short) for growth in found.growths[:2]]
      return RegressionError(
        f"{'; '.join(told)} (--check={self.path}, --tolerance={self.text}); to"
        f" accept it, run with --output_baseline={self.path} instead of --check"
      )
    fullest = max(found.evaluation.peak_memory_bytes.values())
    before = max(d.peak_memory_bytes for d in self.baseline.devices)
    print(
      f"Within {self.text} of {self.path}: the step takes"
      f" {format_us(found.evaluation.step_time_us)}, before"
      f" {format_us(self.baseline.step_time_us)}; the fullest device holds"
      f" {format_bytes(fullest)}, before {format_bytes(before)}."
    )
    return None


@dataclasses.dataclass(frozen=True)
class _CheckedSource:
  """Source of a step that has a baseline; see `plan.planner.Source`."""

  source: Source
  check: Check

  @property
  def training(self) -> bool:
    """Returns whether the step is a training step."""
    return self.source.training

  @property
  def suggests_microbatches(self) -> bool:
    """Returns False: a check suggests nothing."""
    return False

  def open(self, microbatches: MicrobatchConfig, show: Stages) -> StepVariant:
    """Extracts the step, and refuses it if it is another than the baseline's.

    Raises:
      TfplaceError: the step is another, or cannot be extracted.
    """
    variant = self.source.open(microbatches, show)
    with json_file.errors_naming(self.check.path):
      baselines.check_same(self.check.baseline, variant.problem)
    return variant

  def compare(
    self, variant: StepVariant, microbatches: MicrobatchConfig, show: Stages
  ) -> str:
    """Compares a microbatched step with the whole step."""
    return self.source.compare(variant, microbatches, show)


def opened(values: flags.FlagValues) -> Check | None:
  """Checks the flags and loads the baseline of `--check`, before any work.

  Returns:
    None without `--check`.

  Raises:
    TfplaceError: a flag or file is invalid, or the baseline is of another
      strategy or order.
  """
  cli.check_writable(values.output_baseline)
  if not values.check:
    if values["tolerance"].present:
      raise cli.UsageError(
        f"--tolerance={values.tolerance} is what --check allows: give both"
        " (--traffic_tolerance gives up time for less traffic)"
      )
    return None
  tolerance = _share(values.tolerance)
  if values.init_placement:
    raise cli.UsageError(
      "--check starts from the placement of its baseline: leave"
      " --init_placement out"
    )
  if values.output_baseline and _is_same(values.check, values.output_baseline):
    raise cli.UsageError(
      f"--check and --output_baseline both name {values.check!r}: check"
      " against it, or write it anew"
    )
  baseline = formats.load_baseline(values.check)
  same = {
    "strategy": values.strategy == baseline.strategy,
    "order": values.order in (baseline.order, orders.AUTO),
  }
  for what, is_same in same.items():
    if not is_same:
      raise cli.UsageError(
        f"{values.check}: the baseline is of {what}"
        f" {shown(getattr(baseline, what))}, and --{what}={values[what].value};"
        " give the same, or write a new baseline"
      )
  return Check(values.check, baseline, tolerance, values.tolerance)


def write(values: flags.FlagValues, report: PlanReport) -> None:
  """Writes the file of `--output_baseline`, if it is given.

  Raises:
    FormatError: the file cannot be written.
  """
  if values.output_baseline:
    baseline = baselines.make_baseline(
      report.best.placement, values.strategy, values.seed
    )
    formats.save_baseline(baseline, values.output_baseline)


def _share(text: str) -> float:
  """Parses "3%" or "0.03".

  Raises:
    UsageError: it is neither, or a share above 1 without a percent sign.
  """
  found = _SHARE.fullmatch(text.strip())
  if not found:
    raise cli.UsageError(
      f"--tolerance={shown(text)} is not a share such as 3% or 0.03"
    )
  number = float(found[1])
  if found[2]:
    return number / 100
  if number >= 1:
    raise cli.UsageError(
      f"--tolerance={text} would allow {100 * number:g}%: write {text}%, or a"
      " share below 1 such as 0.03"
    )
  return number


def _is_same(one: str, other: str) -> bool:
  return os.path.realpath(one) == os.path.realpath(other)


def _sentence(growth: baselines.Growth, short: dict[str, str]) -> str:
  before, now = growth.before, growth.now
  more = format_share(now - before, before) + " more than"
  if not before:
    more = "more than"
  if growth.device is None:
    return (
      f"the step takes {format_us(now)}, {more} {format_us(before)}:"
      f" {_cause(growth.layer, growth.layer_before)}"
    )
  return (
    f"the peak of {short[growth.device]} is {format_bytes(now)}, {more}"
    f" {format_bytes(before)}:"
    f" {_holder(growth.layer, growth.layer_before, growth.device)}"
  )


def _cause(layer: LayerCost | None, was: LayerCost | None) -> str:
  if layer is None:
    return (
      "no layer takes longer or sends more, so its ops wait longer for each"
      " other"
    )
  name = f"layer {shorten(layer.name)!r}"
  if was is None:
    return f"{name} is new and takes {format_us(layer.time_us)}"
  if layer.time_us > was.time_us:
    return (
      f"{name} takes {format_us(layer.time_us)} instead of"
      f" {format_us(was.time_us)}"
    )
  return (
    f"{name} sends {format_bytes(layer.sent_bytes)} to other devices instead of"
    f" {format_bytes(was.sent_bytes)}"
  )


def _holder(layer: LayerCost | None, was: LayerCost | None, device: str) -> str:
  if layer is None:
    return "no layer holds more"
  name = f"layer {shorten(layer.name)!r}"
  holds = format_bytes(layer.held_bytes[device])
  if was is None:
    return f"{name} is new and holds {holds}"
  before = format_bytes(was.held_bytes.get(device, 0.0))
  return f"{name} holds {holds} instead of {before}"

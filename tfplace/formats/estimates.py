"""Estimate files (`tfplace.estimate.v1`)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfplace.core import estimate as core
from tfplace.formats import json_file
from tfplace.formats.reader import Reader

ESTIMATE = "tfplace.estimate.v1"
_ESTIMATE_KEYS = frozenset(
  {
    "format",
    *(field.name for field in dataclasses.fields(core.Estimate)),
  }
  - {"extra"}
)
_STEP_KEYS = frozenset(f.name for f in dataclasses.fields(core.StepEstimate))
_CARD_KEYS = frozenset(f.name for f in dataclasses.fields(core.CardEstimate))


def load_estimate(path: json_file.Path) -> core.Estimate:
  """Reads an estimate; a FormatError names the file, element and value."""
  data = json_file.read_json(path, ESTIMATE)
  with json_file.errors_naming(path):
    return estimate_from_json(data)


def save_estimate(estimate: core.Estimate, path: json_file.Path) -> None:
  """Writes an estimate atomically; raises FormatError if it cannot."""
  json_file.write_json(path, estimate_to_json(estimate))


def estimate_to_json(estimate: core.Estimate) -> dict[str, Any]:
  """Converts an estimate to JSON; unlimited memory becomes null."""
  data = _plain(dataclasses.asdict(estimate))
  extra = data.pop("extra")
  return {"format": ESTIMATE, **data, **extra}


def _plain(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  if isinstance(value, float):
    return json_file.plain_number(value) if math.isfinite(value) else None
  return value


def estimate_from_json(data: Mapping[str, Any]) -> core.Estimate:
  """Converts a parsed file; a FormatError names the element and value."""
  read = Reader(data, "estimate")
  largest = read.optional("largest_batch")
  return core.Estimate(
    model=read.text("model"),
    batch_size=read.count("batch_size"),
    training=read.flag("training"),
    steps=read.each("steps", _step),
    notes=read.texts("notes"),
    largest_batch=None if largest is None else _largest(largest),
    extra=json_file.unknown_keys(data, _ESTIMATE_KEYS, "estimate"),
  )


def _step(read: Reader) -> core.StepEstimate:
  weights = read.optional("weights")
  return core.StepEstimate(
    precision=read.text("precision"),
    num_ops=read.count("num_ops"),
    weights=None if weights is None else _weights(weights),
    gradient_bytes=read.number("gradient_bytes"),
    peak=_peak(read.inner("peak")),
    cards=read.each("cards", _card),
    variants=read.texts("variants"),
    notes=read.texts("notes"),
  )


def _weights(read: Reader) -> core.WeightSizes:
  return core.WeightSizes(
    trainable_count=read.count("trainable_count"),
    trainable_bytes=read.number("trainable_bytes"),
    non_trainable_count=read.count("non_trainable_count"),
    non_trainable_bytes=read.number("non_trainable_bytes"),
    optimizer_count=read.count("optimizer_count"),
    optimizer_bytes=read.number("optimizer_bytes"),
  )


def _peak(read: Reader) -> core.PeakMemory:
  parts = read.inner("parts")
  return core.PeakMemory(
    device=read.text("device"),
    at_us=read.number("at_us"),
    num_bytes=read.number("num_bytes"),
    parts={key: parts.number(key) for key in parts.data},
    layers=read.each(
      "layers",
      lambda layer: core.LayerBytes(
        layer.text("name"), layer.number("num_bytes")
      ),
    ),
  )


def _card(read: Reader) -> core.CardEstimate:
  return core.CardEstimate(
    name=read.text("name"),
    model=read.text("model"),
    memory_bytes=read.number_or("memory_bytes", math.inf),
    peak_memory_bytes=read.number("peak_memory_bytes"),
    fits=read.flag("fits"),
    step_time_us=read.number("step_time_us"),
    share_of_peak=read.number_or("share_of_peak", None),
    smallest=read.each("smallest", _fit),
  )


def _fit(read: Reader) -> core.SmallestFit:
  return core.SmallestFit(
    variant=read.text("variant"),
    num_devices=read.count("num_devices"),
    microbatches=read.count("microbatches"),
    max_in_flight=read.count("max_in_flight"),
    strategy=read.text("strategy"),
    step_time_us=read.number("step_time_us"),
    peak_memory_bytes=read.number("peak_memory_bytes"),
  )


def _largest(read: Reader) -> core.LargestBatch:
  tried = json_file.as_list(read.data.get("tried", []), read.at("tried"))
  return core.LargestBatch(
    cluster=read.text("cluster"),
    batch_size=read.count("batch_size"),
    strategy=read.text("strategy"),
    step_time_us=read.number("step_time_us"),
    peak_memory_bytes=read.number("peak_memory_bytes"),
    tried=tuple(read.whole(size, "tried") for size in tried),
  )

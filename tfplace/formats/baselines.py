"""Baseline files (`tfplace.baseline.v1`)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfplace.core.baseline import Baseline, DevicePeak, LayerCost
from tfplace.errors import shown
from tfplace.formats import json_file
from tfplace.formats.reader import Reader
from tfplace.formats.results import read_order

BASELINE = "tfplace.baseline.v1"
_BASELINE_KEYS = frozenset(
  {"format", *(field.name for field in dataclasses.fields(Baseline))}
  - {"extra"}
)
_DEVICE_KEYS = frozenset(f.name for f in dataclasses.fields(DevicePeak))
_LAYER_KEYS = frozenset(f.name for f in dataclasses.fields(LayerCost))


def load_baseline(path: json_file.Path) -> Baseline:
  """Reads a baseline; a FormatError names the file, element and value."""
  data = json_file.read_json(path, BASELINE)
  with json_file.errors_naming(path):
    return baseline_from_json(data)


def save_baseline(baseline: Baseline, path: json_file.Path) -> None:
  """Writes a baseline atomically; raises FormatError if it cannot."""
  json_file.write_json(path, baseline_to_json(baseline))


def baseline_to_json(baseline: Baseline) -> dict[str, Any]:
  """Converts a baseline to JSON; unlimited memory becomes null."""
  number = json_file.plain_number
  data = {
    field.name: getattr(baseline, field.name)
    for field in dataclasses.fields(Baseline)
    if field.name != "extra"
  }
  return {
    "format": BASELINE,
    **data,
    "step_time_us": number(baseline.step_time_us),
    "devices": [
      {
        "name": device.name,
        "peak_memory_bytes": number(device.peak_memory_bytes),
        "memory_bytes": number(device.memory_bytes)
        if math.isfinite(device.memory_bytes)
        else None,
      }
      for device in baseline.devices
    ],
    "layers": [
      {
        "name": layer.name,
        "time_us": number(layer.time_us),
        "sent_bytes": number(layer.sent_bytes),
        "held_bytes": {d: number(n) for d, n in layer.held_bytes.items()},
      }
      for layer in baseline.layers
    ],
    "assignments": dict(baseline.assignments),
    **baseline.extra,
  }


def baseline_from_json(data: Mapping[str, Any]) -> Baseline:
  """Converts a parsed file; a FormatError names the element and value."""
  read = Reader(data, "baseline")
  assignments = read.inner("assignments")
  return Baseline(
    graph=read.text("graph"),
    cluster=read.text("cluster"),
    cluster_digest=read.text("cluster_digest"),
    strategy=read.text("strategy"),
    seed=read.count("seed"),
    variant=read.text("variant"),
    order=read_order({"order": read.text("order")}),
    costs=read.text("costs"),
    training=read.flag("training") if read.has("training") else None,
    batch_size=read.count("batch_size") if read.has("batch_size") else None,
    step_time_us=read.number("step_time_us"),
    devices=read.each("devices", _device),
    layers=read.each("layers", _layer),
    assignments={
      op: json_file.as_name(device, assignments.at(shown(op)))
      for op, device in assignments.data.items()
    },
    extra=json_file.unknown_keys(data, _BASELINE_KEYS, "baseline"),
  )


def _device(read: Reader) -> DevicePeak:
  return DevicePeak(
    name=read.text("name"),
    peak_memory_bytes=read.number("peak_memory_bytes"),
    memory_bytes=read.number_or("memory_bytes", math.inf),
  )


def _layer(read: Reader) -> LayerCost:
  held = read.inner("held_bytes")
  return LayerCost(
    name=read.text("name"),
    time_us=read.number("time_us"),
    sent_bytes=read.number("sent_bytes"),
    held_bytes={device: held.number(device) for device in held.data},
  )

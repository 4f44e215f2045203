"""An explanation as JSON data (`tfplace.explanation.v1`)."""

import dataclasses
import math
from typing import Any

from tfplace.report.explain.bottleneck import link_busy_us
from tfplace.report.explain.explanation import Explanation
from tfplace.report.explain.words import op_summary, summary
from tfplace.report.tracks import channel_names

FORMAT = "tfplace.explanation.v1"


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
  """Times in microseconds, sizes in bytes, as in the other formats."""
  schedule, path = explanation.schedule, explanation.path
  problem = schedule.placement.problem
  bottleneck = explanation.bottleneck
  data: dict[str, Any] = {
    "format": FORMAT,
    "graph": problem.graph.name,
    "cluster": problem.cluster.name,
    "step_time_us": schedule.step_time_us,
    "lower_bound_us": problem.lower_bound_us,
    "ratio_to_bound": explanation.ratio_to_bound,
    "feasible": explanation.is_feasible,
    "devices": _devices(explanation),
    "links": _links(explanation),
    "critical_path": {
      "compute_us": path.compute_us,
      "transfer_us": path.transfer_us,
      "queue_us": path.queue_us,
      "idle_us": path.idle_us,
      "parts": [dataclasses.asdict(part) for part in path.parts],
      "layers": [dataclasses.asdict(layer) for layer in path.layers],
    },
    "bottleneck": None
    if bottleneck is None
    else {"kind": bottleneck.kind, "name": bottleneck.name},
    "if_twice_as_fast": [dataclasses.asdict(x) for x in explanation.loads],
    "what_if": [dataclasses.asdict(x) for x in explanation.what_if],
    "summary": summary(explanation),
  }
  if explanation.op is not None:
    data["op"] = {
      **dataclasses.asdict(explanation.op),
      "summary": op_summary(explanation.op, schedule.step_time_us),
    }
  return data


def _devices(explanation: Explanation) -> list[dict[str, Any]]:
  schedule = explanation.schedule
  devices = schedule.placement.problem.cluster.devices
  return [
    {
      "name": device.name,
      "kind": device.kind,
      "busy_us": float(schedule.busy_us[i]),
      "peak_memory_bytes": float(schedule.peak_memory_bytes[i]),
      "memory_bytes": None
      if math.isinf(device.memory_bytes)
      else device.memory_bytes,
    }
    for i, device in enumerate(devices)
  ]


def _links(explanation: Explanation) -> list[dict[str, Any]]:
  schedule = explanation.schedule
  busy_us = link_busy_us(schedule)
  return [
    {"name": name, "busy_us": float(us)}
    for name, us in zip(channel_names(schedule), busy_us, strict=True)
  ]

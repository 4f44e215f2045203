"""Layers of a step by name, and what a device holds at its peak."""

import numpy as np

from tfplace.core.microbatches import name_in_whole
from tfplace.core.op_graph import OpGraph
from tfplace.core.op_names import scope_of
from tfplace.simulate import Schedule

OUTSIDE = "(outside of layers)"


def layer_labels(graph: OpGraph) -> list[str]:
  """Returns [num_ops] the layer of each op, which no cost of an op changes.

  It is the path of the layer, or the scope of the op's name, or `OUTSIDE`. In
  a graph without layers and scopes, each op is a layer.
  """
  names = [name_in_whole(name) for name in graph.names]
  found = [
    path or scope_of(name)
    for path, name in zip(graph.layer_paths, names, strict=True)
  ]
  if not any(found):
    return names
  return [label or OUTSIDE for label in found]


def held_at_peak(schedule: Schedule, device: int) -> tuple[float, np.ndarray]:
  """Returns the first instant of a device's peak and what it holds then.

  Returns:
    The instant in microseconds, and [num_blocks] bool, True for each of
    `schedule.blocks` that the device holds. A block counts from its start on,
    and no longer at its end. Persistent bytes of ops come on top.
  """
  curve, blocks = schedule.memory[device], schedule.blocks
  at_us = float(curve.time_us[int(curve.num_bytes.argmax())])
  held = (blocks.device == device) & (blocks.start_us <= at_us)
  return at_us, held & (blocks.end_us > at_us)

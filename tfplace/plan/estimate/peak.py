"""Contents of a device's memory at its peak, by part and by layer."""

from collections.abc import Mapping

import numpy as np

from tfplace.graph import estimate as parts
from tfplace.graph.estimate import LayerBytes, PeakMemory
from tfplace.graph.microbatches import name_in_whole
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.op_names import GRADIENT_SCOPE, scope_of
from tfplace.graph.paths import descendants
from tfplace.simulate import Schedule

_MAX_LAYERS = 8  # Listed at the peak.


def peak_memory(
  schedule: Schedule, device: int, card: str, roles: Mapping[str, str]
) -> PeakMemory:
  """Divides a device's memory at the first instant of its peak.

  Args:
    schedule: the simulated step.
    device: index of the device.
    card: name of the device in the result.
    roles: node of a variable -> its role, one of `graph.estimate.ROLES`.

  Returns:
    The parts, whose sum is the peak. Activations are outputs of forward ops.
    Gradients are outputs of ops that depend on a gradient, so updates count
    among them, and so do gradients of activations.
  """
  graph = schedule.placement.problem.graph
  curve, blocks = schedule.memory[device], schedule.blocks
  at_us = float(curve.time_us[int(curve.num_bytes.argmax())])
  # A block counts from its start on, and no longer at its end.
  held = (blocks.device == device) & (blocks.start_us <= at_us)
  held &= blocks.end_us > at_us
  sums = dict.fromkeys(parts.PARTS, 0.0)
  here = schedule.placement.devices == device
  for op in np.flatnonzero(here & (graph.persistent_bytes > 0)).tolist():
    role = roles.get(graph.names[op], parts.OTHER)
    sums[role] += float(graph.persistent_bytes[op])
  # The part that the outputs of each op belong to.
  op_part = np.select(
    [_is_backward(graph), np.array(graph.types) == "ReadVariableOp"],
    [parts.GRADIENTS, parts.READS],
    parts.ACTIVATIONS,
  )
  part = np.where(blocks.is_temporary, parts.TEMPORARY, op_part[blocks.op])
  for name in set(part[held].tolist()):
    sums[name] += float(blocks.num_bytes[held & (part == name)].sum())
  forward = np.flatnonzero(held & (part == parts.ACTIVATIONS))
  layers: dict[str, float] = {}
  labels = _layer_labels(graph)
  for block in forward.tolist():
    name = labels[int(blocks.op[block])]
    layers[name] = layers.get(name, 0.0) + float(blocks.num_bytes[block])
  largest = sorted(layers.items(), key=lambda item: (-item[1], item[0]))
  return PeakMemory(
    device=card,
    at_us=at_us,
    num_bytes=sum(sums.values()),
    parts=sums,
    layers=tuple(LayerBytes(*x) for x in largest[:_MAX_LAYERS]),
  )


def _is_backward(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] bool; True for gradients and what is computed of them.

  Control edges do not count: a clone that recomputes a forward op waits for a
  gradient, but is none.
  """
  is_gradient = np.array([GRADIENT_SCOPE in n for n in graph.names], bool)
  data = graph.edge_output >= 0
  return descendants(is_gradient, graph.edge_src[data], graph.edge_dst[data])


def _layer_labels(graph: OpGraph) -> list[str]:
  """Returns [num_ops] the layer of each op: its path, or the op's scope.

  In a graph without layers and scopes, each op is a layer.
  """
  names = [name_in_whole(name) for name in graph.names]
  labels = [
    path or scope_of(name)
    for path, name in zip(graph.layer_paths, names, strict=True)
  ]
  if not any(labels):
    return names
  return [label or "(outside of layers)" for label in labels]

"""Activations that a plan keeps in host memory."""

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.units import format_bytes


def offloads(placement: Placement) -> bool:
  """Returns whether an activation waits on another device than its own."""
  graph, devices = placement.problem.graph, placement.devices
  held = np.isin(graph.edge_dst, graph.offload_ops) & (graph.edge_output >= 0)
  apart = devices[graph.edge_src] != devices[graph.edge_dst]
  return bool((held & apart).any())


def note(placement: Placement) -> str:
  """Describes what a placement on GPUs keeps in host memory.

  Returns:
    Part of a sentence about activations that wait there for the backward pass,
    and about variables; "" if there is neither, or no GPU is used.
  """
  problem = placement.problem
  graph, devices = problem.graph, placement.devices
  is_host = np.array([d.is_cpu for d in problem.cluster.devices])
  on_host = is_host[devices]
  if on_host.all():
    return ""
  waiting = graph.offload_ops[on_host[graph.offload_ops]]
  parts = []
  if len(waiting):
    size = format_bytes(float(graph.op_output_bytes[waiting].sum()))
    count = len(waiting)
    what = "activation waits" if count == 1 else "activations wait"
    parts.append(f"{count} {what} in host memory ({size})")
  held = float(graph.persistent_bytes[on_host].sum())
  if held:
    count = int((graph.persistent_bytes[on_host] > 0).sum())
    what = "variable is" if count == 1 else "variables are"
    parts.append(f"{count} {what} in host memory ({format_bytes(held)})")
  return " and ".join(parts)

"""Expert rules: layers in contiguous blocks, one block per device.

After the baselines of placement papers (Mirhoseini et al., 2017; GO, arXiv
2010.12438): sequence models are divided by layer number, Inception between
cells. Gradients stay with forward ops, optimizers with variables.
"""

import collections
import re

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.op_names import UNKNOWN, forward_name
from tfplace.placers.groups import GroupGraph, equal_blocks, main_devices
from tfplace.placers.one_shot import Batches
from tfplace.placers.rules.axes import spread

_NUMBERED = re.compile(
  r"(?:encoder|decoder|lstm|recurrent|transformer)_layer_(\d{1,9})"
)
_EMBEDDING = re.compile(r"embedding|encoder_embedding|decoder_embedding")
_LAST = re.compile(r"attention|softmax")
_CELL_END = re.compile(r"/mixed(\d{1,9})[_\d]*/")


def expert(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Recognizes the model family by op names and divides its layers."""
  names = [forward_name(name) for name in groups.problem.graph.names]
  is_numbered = any(_NUMBERED.search(name) for name in names)
  yield [(_numbered if is_numbered else _layered)(groups, names)]


def _numbered(groups: GroupGraph, names: list[str]) -> np.ndarray:
  """Returns [num_groups] devices of a sequence model, divided by layer."""
  devices = main_devices(groups)
  last = len(devices) - 1
  depths = [_NUMBERED.search(name) for name in names]
  num_layers = 1 + max(int(d.group(1)) for d in depths if d)
  block = np.full(len(names), UNKNOWN)
  # A spare last device runs only attention and softmax.
  blocks = last if last >= num_layers else len(devices)
  for op, (name, depth) in enumerate(zip(names, depths, strict=True)):
    if depth:
      block[op] = int(depth.group(1)) * min(blocks, num_layers) // num_layers
    elif _LAST.search(name):
      block[op] = last
    elif _EMBEDDING.search(name):
      block[op] = 0
  return _by_blocks(groups, block, devices)


def _layered(groups: GroupGraph, names: list[str]) -> np.ndarray:
  """Returns [num_groups] devices of a feed-forward model, divided by layer."""
  layers = _layer_numbers(groups, names)
  devices = main_devices(groups)
  if layers.max(initial=UNKNOWN) + 1 < len(devices):
    return groups.beside_readers(equal_blocks(groups, groups.order))
  known = layers >= 0
  work = np.bincount(
    layers[known], groups.problem.fastest_us[known], layers.max() + 1
  )
  middle = (np.cumsum(work) - work / 2) / max(float(work.sum()), 1e-300)
  block_of_layer = np.minimum(
    (middle * len(devices)).astype(int), len(devices) - 1
  )
  block = np.where(known, block_of_layer[layers], UNKNOWN)
  return _by_blocks(groups, block, devices)


def _layer_numbers(groups: GroupGraph, names: list[str]) -> np.ndarray:
  """Returns [num_ops] layer of each op in order of first use, or UNKNOWN.

  An expert keeps cells together, so all layers between two cell ends
  (Inception's `mixed0`, `mixed1`, ...) count as one.
  """
  graph, op_us = groups.problem.graph, groups.problem.fastest_us
  scopes, start = _scopes(names), groups.op_start_us
  cells = _cells(groups, names)
  # The longest forward op locates a layer. Reads of its weights depend on
  # nothing and may run at any time.
  lead: dict[str, int] = {}
  for op, scope in enumerate(scopes):
    if scope and names[op] == graph.names[op]:
      other = lead.get(scope)
      if other is None or op_us[op] > op_us[other]:
        lead[scope] = op
  key_of = {
    scope: scope if cells is None else int(cells[op])
    for scope, op in lead.items()
  }
  first: dict[object, float] = {}
  for scope, op in lead.items():
    key = key_of[scope]
    first[key] = min(first.get(key, np.inf), float(start[op]))
  ordered = sorted(first, key=lambda key: first[key])
  number = {key: i for i, key in enumerate(ordered)}
  return np.array(
    [number.get(key_of.get(scope), UNKNOWN) for scope in scopes], int
  )


def _scopes(names: list[str]) -> list[str]:
  """Returns the layer scope of each name: `model/layer/...` -> `model/layer`.

  The model's scope is the most common first part; "" means no layer.
  """
  parts = [name.split("/") for name in names]
  heads = collections.Counter(part[0] for part in parts if len(part) > 2)
  if not heads:
    return ["/".join(part[:1]) if len(part) > 1 else "" for part in parts]
  model = heads.most_common(1)[0][0]
  return [
    "/".join(part[:2]) if part[0] == model and len(part) > 2 else ""
    for part in parts
  ]


def _cells(groups: GroupGraph, names: list[str]) -> np.ndarray | None:
  """Returns [num_ops] cell of each op: N + 1 behind `mixedN`, else 0."""
  graph = groups.problem.graph
  end_of = np.zeros(graph.num_ops, int)
  for op, name in enumerate(names):
    match = _CELL_END.search(name)
    if match and name == graph.names[op]:
      end_of[op] = 1 + int(match.group(1))
  if not end_of.any():
    return None
  cell = np.zeros(graph.num_ops, int)
  offsets, edges = graph.in_csr
  for op in graph.topological_order.tolist():
    sources = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    if len(sources):
      cell[op] = np.maximum(cell[sources], end_of[sources]).max()
  return cell


def _by_blocks(
  groups: GroupGraph, block: np.ndarray, devices: np.ndarray
) -> np.ndarray:
  """Converts [num_ops] blocks to [num_groups] devices.

  A group goes to the block with most of its ops' time. A group without known
  ops follows the neighbor with the most traffic.
  """
  wanted = np.maximum(spread(groups, groups.majority(block)), 0)
  return groups.nearest(devices[wanted])

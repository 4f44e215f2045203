"""Structure of a traced step: ops, edges, device kinds and colocation.

Ops that share a device: users of one resource handle or reference, both ends of
a variant edge or of a TensorFlow 1 back edge, equal `shared_name`s, `_class:
loc:@op`, and a recurrent layer of cuDNN and its gradient.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import kernels
from tfplace.extraction import nodes as node_lib
from tfplace.extraction.traced import TracedStep
from tfplace.graph.microbatches import microbatch_of
from tfplace.graph.paths import DisjointSets, reached

_STICKY = frozenset((tf.resource.as_datatype_enum, tf.variant.as_datatype_enum))
_REFERENCE = 100  # reference types have larger numbers
_LOCATION = "loc:@"
# Op type -> outputs that only the same card can read.
_OPAQUE = {"CudnnRNNV2": (3, 4), "CudnnRNNV3": (3, 4)}


@dataclasses.dataclass(frozen=True)
class Skeleton:
  """Ops in the order of the GraphDef, without costs.

  Attributes:
    names: [num_ops] op names.
    types: [num_ops] TensorFlow op types.
    kinds: [num_ops] device kinds with a kernel for the op.
    num_outputs: [num_ops] number of output tensors.
    edges: (producer, output, consumer) as indices of ops; output -1 is a
      control edge. Edges are unique and sorted by consumer. The back edge from
      a `NextIteration` to its `Merge` is left out: costs count one iteration of
      a loop, and the two ops share a colocation group.
    colocation: [num_ops] name of the colocation group, or None.
    layers: [num_ops] path of the innermost Keras layer, the model first, such
      as "net/encoder/dense"; None for ops outside layers.
    microbatches: [num_ops] microbatch of the op in a microbatched step; None
      for ops that all microbatches share.
  """

  names: tuple[str, ...]
  types: tuple[str, ...]
  kinds: tuple[frozenset[str], ...]
  num_outputs: tuple[int, ...]
  edges: tuple[tuple[int, int, int], ...]
  colocation: tuple[str | None, ...]
  layers: tuple[str | None, ...]
  microbatches: tuple[int | None, ...]


def skeleton(traced: TracedStep) -> Skeleton:
  """Extracts the structure of a step.

  Raises:
    ExtractionError: no device kind has a kernel for an op, or this TensorFlow
      does not know its type.
  """
  graph_def = traced.graph_def
  functions = node_lib.functions_of(graph_def)
  table = kernels.KernelTable(functions)
  kinds = tuple(table.kinds(node) for node in graph_def.node)
  for node, allowed in zip(graph_def.node, kinds, strict=True):
    if not allowed:
      raise ExtractionError(
        f"op {node.name!r} ({node.op}) has a kernel for its types on no"
        f" device kind of {', '.join(kernels.KINDS)}",
        op=node.name,
      )
  return Skeleton(
    names=tuple(node.name for node in graph_def.node),
    types=tuple(node.op for node in graph_def.node),
    kinds=kinds,
    num_outputs=tuple(
      len(node_lib.output_types(node, functions)) for node in graph_def.node
    ),
    edges=_edges(graph_def),
    colocation=colocation_groups(graph_def),
    layers=tuple(
      "/".join(reversed(traced.layers.get(node.name, ()))) or None
      for node in graph_def.node
    ),
    microbatches=tuple(
      microbatch_of(node.name) if traced.microbatches > 1 else None
      for node in graph_def.node
    ),
  )


def _edges(
  graph_def: tf.compat.v1.GraphDef,
) -> tuple[tuple[int, int, int], ...]:
  index = {node.name: i for i, node in enumerate(graph_def.node)}
  edges: dict[tuple[int, int, int], None] = {}
  for i, node in enumerate(graph_def.node):
    for source, output in map(node_lib.split_tensor, node.input):
      at = index[source]
      if not node_lib.is_back_edge(graph_def.node[at], node):
        edges[at, output, i] = None
  return tuple(edges)


def prune(
  graph_def: tf.compat.v1.GraphDef, roots: Iterable[str]
) -> tf.compat.v1.GraphDef:
  """Keeps the ancestors of the roots (nodes or tensors), in their order.

  A session and a function's runtime prune the same way. The library is kept.
  """
  nodes = node_lib.by_name(graph_def)
  needed = reached(
    (node_lib.split_tensor(root)[0] for root in roots),
    lambda name: [node_lib.split_tensor(i)[0] for i in nodes[name].input],
  )
  result = tf.compat.v1.GraphDef(
    versions=graph_def.versions, library=graph_def.library
  )
  result.node.extend(n for n in graph_def.node if n.name in needed)
  return result


def colocation_groups(
  graph_def: tf.compat.v1.GraphDef,
) -> tuple[str | None, ...]:
  """Returns [num_nodes] the first node of each colocation group, or None."""
  functions = node_lib.functions_of(graph_def)
  index = {node.name: i for i, node in enumerate(graph_def.node)}
  sets = DisjointSets(len(graph_def.node))
  types = [node_lib.output_types(n, functions) for n in graph_def.node]
  shared: dict[tuple[str, bytes, bytes], int] = {}
  foreign: dict[str, int] = {}  # constraints that name no node of the graph
  for i, node in enumerate(graph_def.node):
    for source, output in map(node_lib.split_tensor, node.input):
      at = index[source]
      if output >= 0 and (
        node_lib.is_back_edge(graph_def.node[at], node)
        or _is_sticky(types[at][output])
        or output in _OPAQUE.get(graph_def.node[at].op, ())
      ):
        sets.union(at, i)
    if "shared_name" in node.attr and node.attr["shared_name"].s:
      key = (node.op, node.attr["container"].s, node.attr["shared_name"].s)
      sets.union(shared.setdefault(key, i), i)
    for target in locations(node):
      sets.union(index.get(target, foreign.setdefault(target, i)), i)
  roots = sets.roots().tolist()
  sizes = collections.Counter(roots)
  return tuple(
    graph_def.node[root].name if sizes[root] > 1 else None for root in roots
  )


def _is_sticky(dtype: int) -> bool:
  return dtype in _STICKY or dtype > _REFERENCE


def locations(node: node_lib.NodeDef) -> list[str]:
  """Lists the targets of the node's `loc:@` constraints, in order."""
  if "_class" not in node.attr:
    return []
  texts = [s.decode(errors="replace") for s in node.attr["_class"].list.s]
  return [t[len(_LOCATION) :] for t in texts if t.startswith(_LOCATION)]


def repair_constraints(
  graph_def: tf.compat.v1.GraphDef, renamed: Mapping[str, str]
) -> None:
  """Makes every constraint name a node of the flat graph, in place.

  `renamed` maps old node names to new ones. The first node that names an absent
  target replaces it.
  """
  present = {node.name for node in graph_def.node}
  stand_in: dict[str, str] = {}
  for node in graph_def.node:
    old = locations(node)
    new = [renamed.get(name, name) for name in old]
    new = [
      name if name in present else stand_in.setdefault(name, node.name)
      for name in new
    ]
    if new != old:
      _set(node, [name for name in new if name != node.name])


def _set(node: node_lib.NodeDef, names: list[str]) -> None:
  location = _LOCATION.encode()
  texts = [t for t in node.attr["_class"].list.s if not t.startswith(location)]
  texts += [location + name.encode() for name in names]
  del node.attr["_class"]
  if texts:
    node.attr["_class"].list.s.extend(texts)

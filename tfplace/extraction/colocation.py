"""Which ops TensorFlow needs on one device.

Ops that make, pass on or use a resource handle or a reference stay together,
as do the ends of a variant edge (a TensorList has no size that could be
costed, so it never travels here), the ends of a TensorFlow 1 loop's back edge,
handles of one `shared_name`, and `_class: loc:@op` constraints. Groups that
meet are merged.

Repairs `_class: loc:@op` constraints after nodes were renamed or inlined.

TensorFlow's importer refuses a constraint on a node that is not there; inside
a function such a constraint still means that its bearers stay together."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfplace.extraction import nodes, validate

_STICKY = frozenset(
  (
    tf.resource.as_datatype_enum,
    tf.variant.as_datatype_enum,
  )
)
_REFERENCE = 100  # reference types are numbered above it


def colocation(
  graph_def: tf.compat.v1.GraphDef,
) -> tuple[str | None, ...]:
  """[num_nodes] group name per node, None where it is free.

  A group is named after its first node.
  """
  functions = {f.signature.name: f for f in graph_def.library.function}
  index = {node.name: i for i, node in enumerate(graph_def.node)}
  parent = list(range(len(graph_def.node)))
  outputs: dict[int, Sequence[int]] = {}
  shared: dict[tuple[str, bytes, bytes], int] = {}
  foreign: dict[str, int] = {}  # constraints that name no node of the graph
  for i, node in enumerate(graph_def.node):
    for text in node.input:
      source, output = nodes.split_tensor(text)
      if output < 0:
        continue
      at = index[source]
      if at not in outputs:
        outputs[at] = nodes.output_types(graph_def.node[at], functions)
      back = validate.is_back_edge(graph_def.node[at], node)
      if back or _is_sticky(outputs[at], output):
        _union(parent, at, i)
    if node.attr["shared_name"].s if "shared_name" in node.attr else b"":
      key = (node.op, node.attr["container"].s, node.attr["shared_name"].s)
      _union(parent, shared.setdefault(key, i), i)
    for target in locations(node):
      at = index.get(target, foreign.setdefault(target, i))
      _union(parent, at, i)
  return _names(graph_def, parent)


def _is_sticky(types: Sequence[int], output: int) -> bool:
  if output >= len(types):
    return False
  return types[output] in _STICKY or types[output] > _REFERENCE


def _find(parent: list[int], i: int) -> int:
  while parent[i] != i:
    parent[i] = parent[parent[i]]
    i = parent[i]
  return i


def _union(parent: list[int], a: int, b: int) -> None:
  a, b = _find(parent, a), _find(parent, b)
  parent[max(a, b)] = min(a, b)  # the root is the group's first node


def _names(
  graph_def: tf.compat.v1.GraphDef, parent: list[int]
) -> tuple[str | None, ...]:
  roots = [_find(parent, i) for i in range(len(parent))]
  size: Mapping[int, int] = {}
  size = dict.fromkeys(roots, 0)
  for root in roots:
    size[root] += 1
  return tuple(
    graph_def.node[root].name if size[root] > 1 else None for root in roots
  )


LOCATION = "loc:@"


def locations(node: tf.compat.v1.NodeDef) -> list[str]:
  """What the node's `loc:@` constraints name, in order."""
  if "_class" not in node.attr:
    return []
  texts = [s.decode(errors="replace") for s in node.attr["_class"].list.s]
  return [t[len(LOCATION) :] for t in texts if t.startswith(LOCATION)]


def repair(
  graph_def: tf.compat.v1.GraphDef, renamed: Mapping[str, str]
) -> None:
  """Makes every constraint name a node of the graph, in place.

  The first node that names an absent one stands for it from then on.

  Args:
    graph_def: a flat graph.
    renamed: old node name -> new one.
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


def _set(node: tf.compat.v1.NodeDef, names: list[str]) -> None:
  others = [
    text
    for text in node.attr["_class"].list.s
    if not text.startswith(LOCATION.encode())
  ]
  texts = [*others, *(f"{LOCATION}{name}".encode() for name in names)]
  del node.attr["_class"]
  if texts:
    node.attr["_class"].list.s.extend(texts)

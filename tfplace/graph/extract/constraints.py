"""Repairs `_class: loc:@op` constraints after nodes were renamed or inlined.

TensorFlow's importer refuses a constraint on a node that is not there; inside
a function such a constraint still means that its bearers stay together.
"""

from collections.abc import Mapping

import tensorflow as tf

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

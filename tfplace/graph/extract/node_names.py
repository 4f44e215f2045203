"""Names of nodes and tensors in a GraphDef: parsing and making them legal."""

import re
from collections.abc import Callable, Iterable

import tensorflow as tf

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.\\/>-]")
_LEGAL = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*\Z")


def is_legal(name: str) -> bool:
  """Whether TensorFlow accepts the name for a node."""
  return bool(_LEGAL.match(name))


def split_tensor(text: str) -> tuple[str, int]:
  """Node and output index of an input string; -1 for "^control"."""
  if text.startswith("^"):
    return text[1:], -1
  node, colon, index = text.rpartition(":")
  if colon and index.isdigit():
    return node, int(index)
  return text, 0


def join_tensor(node: str, output: int) -> str:
  """The inverse of `split_tensor`, in TensorFlow's short form."""
  if output < 0:
    return "^" + node
  return node if output == 0 else f"{node}:{output}"


def canonical(text: str) -> str:
  """The short form of an input string: "x:0" is "x"."""
  return join_tensor(*split_tensor(text))


def unique_name(wanted: str, used: Iterable[str]) -> str:
  """A legal node name near `wanted` that is not among `used`."""
  base = _ILLEGAL.sub("_", wanted).lstrip("_\\/>-") or "node"
  name, number = base, 0
  while name in used:
    number += 1
    name = f"{base}_{number}"
  return name


def controls_last(inputs: Iterable[str]) -> list[str]:
  """Data inputs, then each control input once: the order of a NodeDef."""
  inputs = list(inputs)
  data = [i for i in inputs if not i.startswith("^")]
  return data + list(dict.fromkeys(i for i in inputs if i.startswith("^")))


def by_name(
  graph_def: tf.compat.v1.GraphDef,
) -> dict[str, tf.compat.v1.NodeDef]:
  """Node name -> node."""
  return {node.name: node for node in graph_def.node}


def producers_first(
  graph_def: tf.compat.v1.GraphDef,
  cut: Callable[[tf.compat.v1.NodeDef, tf.compat.v1.NodeDef], bool]
  | None = None,
) -> list[tf.compat.v1.NodeDef]:
  """The nodes in a topological order; without those on or after a cycle.

  Args:
    graph_def: every input names one of its nodes.
    cut: (producer, consumer) -> whether to ignore an edge.
  """
  nodes = by_name(graph_def)
  consumers: dict[str, list[str]] = {name: [] for name in nodes}
  missing = dict.fromkeys(nodes, 0)
  for node in graph_def.node:
    for text in node.input:
      source = split_tensor(text)[0]
      if cut is None or not cut(nodes[source], node):
        consumers[source].append(node.name)
        missing[node.name] += 1
  ready = [name for name, count in missing.items() if not count]
  for name in ready:  # grows while it is read
    for consumer in consumers[name]:
      missing[consumer] -= 1
      if not missing[consumer]:
        ready.append(consumer)
  return [nodes[name] for name in ready]

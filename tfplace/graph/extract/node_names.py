"""Names of nodes and tensors in a GraphDef: parsing and making them legal."""

import re
from collections.abc import Iterable

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

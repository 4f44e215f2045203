"""How large a graph is with its calls inlined, counted without inlining them.

TensorFlow follows calls as it imports a graph, each as often as it is reached:
it runs out of stack where a function calls itself, and out of time where thirty
functions each call the next one four times. So this is asked first.
"""

from collections.abc import Iterable, Iterator

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as op_defs

MAX_NODES = 5_000_000
MAX_DEPTH = 100


def check(graph_def: tf.compat.v1.GraphDef) -> None:
  """Checks the graph and every function, also those that nobody calls.

  Raises:
    ExtractionError: a function calls itself, by others or directly; calls are
      nested deeper than `MAX_DEPTH`; or something has more than `MAX_NODES`
      nodes with all its calls inlined.
  """
  tree = _CallTree(graph_def)
  for name in tree.functions:
    tree.size_of(name)
  tree.total(graph_def.node, "the graph")


class _CallTree:
  """The sizes of the functions of one library."""

  def __init__(self, graph_def: tf.compat.v1.GraphDef) -> None:
    library = graph_def.library
    self.functions = {f.signature.name: f for f in library.function}
    self._gradients = {
      g.function_name: g.gradient_func for g in library.gradient
    }
    self._sizes: dict[str, int] = {}  # with all calls inlined
    self._entered: list[str] = []

  def size_of(self, name: str) -> int:
    """Nodes of a function; 0 of what is none."""
    if name in self._sizes or name not in self.functions:
      return self._sizes.get(name, 0)
    if name in self._entered:
      raise ExtractionError(
        f"function {name[:80]!a} is recursive: it calls itself"
      )
    if len(self._entered) >= MAX_DEPTH:
      raise ExtractionError(
        f"function {self._entered[0][:80]!a} has calls that are nested deeper"
        f" than {MAX_DEPTH}"
      )
    self._entered.append(name)
    body = self.functions[name].node_def
    self._sizes[name] = self.total(body, f"function {name[:80]!a}")
    self._entered.pop()
    return self._sizes[name]

  def total(self, nodes: Iterable[op_defs.NodeDef], what: str) -> int:
    """Nodes with all their calls inlined."""
    size = 0
    for node in nodes:
      size += 1 + sum(self.size_of(name) for name in self._called(node))
    if size > MAX_NODES:
      raise ExtractionError(
        f"with its functions inlined {what} has {size} nodes, more than the"
        f" {MAX_NODES} that are accepted"
      )
    return size

  def _called(self, node: op_defs.NodeDef) -> Iterator[str]:
    names = op_defs.called_functions(node)
    yield from names
    if node.op == "SymbolicGradient":
      yield from (self._gradients[n] for n in names if n in self._gradients)

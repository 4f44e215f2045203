"""Parts of a SavedModel that its loader runs, and ops that read its assets.

`tf.saved_model.load` restores the variables through the model's objects,
without the flat graph, and never saves. It passes the name of an asset as a
captured argument of a function. An op that reads the file named by such an
argument reads a file of the model, wherever the model is stored.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tfplace.extraction import nodes


def keep_objects(meta_graph: Any) -> None:
  """Keeps only functions and constants that TensorFlow 2 objects use."""
  graph_def = meta_graph.graph_def
  objects = meta_graph.object_graph_def
  constants = {node.constant.operation for node in objects.nodes} - {""}
  _keep(
    graph_def.node, lambda node: node.op == "Const" and node.name in constants
  )
  _keep_functions(graph_def, objects_functions(objects))


def objects_functions(objects: Any) -> set[str]:
  """Returns the names of the functions that objects own or capture from."""
  names = set(objects.concrete_functions)
  for node in objects.nodes:
    names.update(node.function.concrete_functions)
    names.add(node.bare_concrete_function.concrete_function_name)
    names.add(node.captured_tensor.concrete_function)
  return names


def _keep_functions(graph_def: Any, roots: Iterable[str]) -> None:
  """Drops functions not reached from `roots`, gradients or the flat graph."""
  library = graph_def.library
  start = [*roots, *(g.gradient_func for g in library.registered_gradients)]
  start += _called_by(graph_def.node)
  functions = nodes.functions_of(graph_def)  # drops duplicate names
  calls = {name: _called_by(f.node_def) for name, f in functions.items()}
  for gradient in library.gradient:
    calls.setdefault(gradient.function_name, []).append(gradient.gradient_func)
  kept = nodes.reached(start, lambda name: calls.get(name, ()))
  del library.function[:]
  library.function.extend(f for name, f in functions.items() if name in kept)
  _keep(library.gradient, lambda g: g.function_name in kept)


def _called_by(body: Iterable[nodes.NodeDef]) -> list[str]:
  return [name for node in body for name in nodes.called_functions(node)]


def _keep(items: Any, is_kept: Callable[[Any], bool]) -> None:
  kept = [item for item in items if is_kept(item)]
  del items[:]
  items.extend(kept)


Call: TypeAlias = tuple[str | None, nodes.NodeDef, int]

_TABLE = re.compile(r"InitializeTableFromTextFile(V2)?")
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_BRANCHES = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))


class OwnFiles:
  """Finds ops of one MetaGraph that read only the model's own assets.

  Args:
    graph_def: its graph, without recursive calls.
    captured: function that can be called directly -> for each of its last
      inputs, whether the loader binds an asset to it.
  """

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    captured: Mapping[str, list[bool]],
  ) -> None:
    self._functions = nodes.functions_of(graph_def)
    self._captured = captured
    self._bodies: dict[str | None, Any] = {None: graph_def.node}
    self._bodies.update({n: f.node_def for n, f in self._functions.items()})
    self._arguments = {
      name: {a.name: i for i, a in enumerate(f.signature.input_arg)}
      for name, f in self._functions.items()
    }
    self._index: dict[str | None, dict[str, nodes.NodeDef]] = {}
    self._calls: dict[str, list[Call]] | None = None
    self._known: dict[tuple[str, int], bool] = {}

  def reads_own_file(self, node: nodes.NodeDef, function: str | None) -> bool:
    """Returns whether the node reads a file that is always the model's."""
    is_table = _TABLE.fullmatch(node.op) and len(node.input) > 1
    return bool(is_table) and self._is_asset(function, node.input[1])

  def _is_asset(self, function: str | None, text: str) -> bool:
    if function is None:
      return False
    body = self._nodes(function)
    if len(body) != len(self._bodies[function]):
      return False  # duplicate names
    name, output = nodes.split_tensor(text)
    node = body.get(name.partition(":")[0])
    for _ in body:  # bounded, since identities may form a cycle
      if node is None or node.op != "Identity" or not node.input:
        break
      name, output = nodes.split_tensor(node.input[0])
      node = body.get(name.partition(":")[0])
    if output != 0:
      return False
    if node is not None or name not in self._arguments[function]:
      return False
    key = (function, self._arguments[function][name])
    if key not in self._known:
      self._known[key] = self._is_argument(*key)
    return self._known[key]

  def _is_argument(self, function: str, number: int) -> bool:
    arguments = self._functions[function].signature.input_arg
    if len(arguments) != len(self._arguments[function]):
      return False  # duplicate names
    if function in self._captured:
      bound = self._captured[function]
      first = len(arguments) - len(bound)
      if number < first or not bound[number - first]:
        return False
    return all(
      offset >= 0
      and len(node.input) > number + offset
      and self._is_asset(caller, node.input[number + offset])
      for caller, node, offset in self._calls_of(function)
    )

  def _nodes(self, function: str | None) -> dict[str, nodes.NodeDef]:
    if function not in self._index:
      body = self._bodies[function]
      self._index[function] = {node.name: node for node in body}
    return self._index[function]

  def _calls_of(self, function: str) -> list[Call]:
    """Lists calls: the caller, the node and the input index of argument 0."""
    if self._calls is None:
      self._calls = {}
      for caller, body in self._bodies.items():
        for node in body:
          for name, offset in _called(node, self._functions):
            self._calls.setdefault(name, []).append((caller, node, offset))
    return self._calls.get(function, [])


def _called(
  node: nodes.NodeDef, functions: Mapping[str, Any]
) -> Iterator[tuple[str, int]]:
  """Yields called functions, and the index of their first input or -1."""
  if node.op in functions:
    yield node.op, 0
  for name in nodes.function_names(node):
    yield name, 0 if node.op in _CALLS else 1 if node.op in _BRANCHES else -1

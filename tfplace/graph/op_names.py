"""Names of ops: their scopes, numbers, and gradients.

TensorFlow names an op after its layers and a gradient after its op:
`gradient_tape/model/decode_37/lstm_layer_1/MatMul/MatMul_1` is a gradient of
`model/decode_37/lstm_layer_1/MatMul`. TensorFlow 1 writes
`gradients/<op>_grad/...`. A clone that the backward pass computes again is
`recompute_3/model/decode_37/lstm_layer_1/MatMul` (`graph.recompute`).
"""

import re
from collections.abc import Iterator

GRADIENT_SCOPE = "gradient_tape/"  # TensorFlow 2 nests it in other scopes, too.
UNKNOWN = -1  # The number of a component without one.
Part = tuple[str, int]  # A component of a name, and its number or UNKNOWN.

_BACKWARD = re.compile(r"(gradient_tape|gradients|Gradients|recompute_\d+)/")
# A longer number is a hash.
_NUMBERED = re.compile(r"^(.*?)_?(?<!\d)(\d{1,9})$")
# Names of fewer parts (`AddN_3`, `adam/Mul_2`) have no scope.
_LEAST_PARTS = 3


def is_gradient(name: str) -> bool:
  """Returns whether an op of the backward pass has this name."""
  return _BACKWARD.match(name) is not None


def forward_name(name: str) -> str:
  """Removes a leading scope of the backward pass."""
  scope = _BACKWARD.match(name)
  return name[scope.end() :] if scope else name


def with_scopes(name: str) -> Iterator[str]:
  """Yields a name and the scopes around it, innermost first."""
  while name:
    yield name
    name = name.rpartition("/")[0]


def scope_of(name: str) -> str | None:
  """Returns the scope of an op or of a gradient's forward op, or None."""
  forward = forward_name(name)
  parts = forward.split("/")
  if len(parts) < _LEAST_PARTS:
    return None
  # A gradient's name ends with the forward op's name and its own.
  last = 2 if forward != name and len(parts) > _LEAST_PARTS else 1
  return "/".join(parts[:-last])


def numbered_parts(scope: str) -> tuple[Part, ...]:
  """Splits `decode_37/lstm` into (("decode", 37), ("lstm", UNKNOWN))."""
  return tuple(map(_part, scope.split("/"))) if scope else ()


def _part(text: str) -> Part:
  match = _NUMBERED.match(text)
  return (match[1], int(match[2])) if match else (text, UNKNOWN)

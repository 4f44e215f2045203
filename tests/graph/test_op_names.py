"""Scopes, numbers and gradients in the names of ops."""

import pytest

from tfplace.graph import op_names


@pytest.mark.parametrize(
  "name, forward",
  [
    ("gradient_tape/net/dense/MatMul/MatMul_1", "net/dense/MatMul/MatMul_1"),
    ("gradients/net/dense/MatMul_grad/MatMul", "net/dense/MatMul_grad/MatMul"),
    ("net/gradient_tape/dense/MatMul", "net/gradient_tape/dense/MatMul"),
    ("net/dense/MatMul", "net/dense/MatMul"),
  ],
)
def test_gradient_names_lead_to_forward_names(name, forward):
  assert op_names.forward_name(name) == forward
  assert op_names.is_gradient(name) == (name != forward)


def test_scopes_are_listed_from_the_innermost():
  assert list(op_names.with_scopes("a/b/c")) == ["a/b/c", "a/b", "a"]
  assert list(op_names.with_scopes("")) == []


@pytest.mark.parametrize(
  "name, scope",
  [
    ("net/dense/MatMul", "net/dense"),
    ("gradient_tape/net/dense/MatMul/MatMul_1", "net/dense"),
    ("gradient_tape/net/dense/MatMul", "net/dense"),
    ("adam/Mul_2", None),
    ("AddN_3", None),
  ],
)
def test_scope_of_a_gradient_is_that_of_its_forward_op(name, scope):
  assert op_names.scope_of(name) == scope


def test_parts_of_a_scope_have_numbers():
  parts = op_names.numbered_parts("net/decode_37/lstm1")
  assert parts == (("net", -1), ("decode", 37), ("lstm", 1))
  # Ten digits are a hash.
  assert op_names.numbered_parts("v_1234567890") == (("v_1234567890", -1),)

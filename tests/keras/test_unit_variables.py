"""Variables that compiled calls read and write, in program order."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.placed_models import LOCAL
from tfplace.variants import op_order
from tfplace.variants.units import calls as unit_calls

DEVICES = tuple(f"{LOCAL}CPU:{i}" for i in range(2))


def program(seed, variables):
  """Exact arithmetic on variables of the first device, in random order."""
  rng = np.random.default_rng(seed)
  values = [tf.constant(1.0), tf.constant(2.0)]
  for _ in range(40):
    device = DEVICES[rng.integers(2)]
    a, b = (values[i] for i in rng.integers(len(values), size=2))
    variable = variables[rng.integers(len(variables))]
    kind = rng.integers(5)
    if kind == 0:
      variable.assign(a)
    elif kind == 1:
      variable.assign_add(b)
    elif kind == 2:
      values.append(variable.read_value())
    else:
      with tf.device(device):
        values.append(tf.minimum(a, b) if kind == 3 else a - b)
  return tf.stack(values)


def run(seed, is_compiled):
  """Results, variables and traced ops of three runs of a program."""
  variables = [tf.Variable(float(i)) for i in range(2)]
  traced = []

  @tf.function(autograph=False)
  def step():
    result = program(seed, variables)
    graph = tf.compat.v1.get_default_graph()
    if is_compiled:
      for op in graph.get_operations():
        if op.type == "ReadVariableOp" or not op.device:
          op._set_device(variables[0].device)
      later = op_order.program_order(graph.get_operations())
      calls, (result,), _ = unit_calls.compile_units(
        graph, lambda op: None, results=[result], later=later, turn_of={}.get
      )
      assert calls
    traced[:] = [op.type for op in graph.get_operations()]
    return result

  results = [step().numpy() for _ in range(3)]
  return results, [v.numpy() for v in variables], traced


@pytest.mark.parametrize("seed", range(6))
def test_calls_read_and_write_variables_in_program_order(seed):
  expected, variables, ops = run(seed, is_compiled=False)
  found, found_variables, calls = run(seed, is_compiled=True)
  np.testing.assert_array_equal(found, expected)
  np.testing.assert_array_equal(found_variables, variables)
  # Reads for the other device, and writes between two calls, may be outside.
  assert sum("Variable" in kind for kind in calls) < 0.7 * sum(
    "Variable" in kind for kind in ops
  )

"""The order in which an op's device is decided, on hand-made graphs."""

import keras
import pytest
import tensorflow as tf

from tfplace.keras.devices import DeviceFunction
from tfplace.plan.plan import Plan

CPU = "/job:localhost/replica:0/task:0/device:CPU:"


def plan_of(ops, **fields):
  return Plan("net", "given", ops, **fields)


def _devices(plan, function, *args):
  """Op name -> device index after tracing `function` under `plan`."""

  @tf.function(autograph=False)
  def traced():
    graph = tf.compat.v1.get_default_graph()
    with graph.device(DeviceFunction(plan)):
      function(*args)

  ops = traced.get_concrete_function().graph.get_operations()
  return {op.name: op.device.removeprefix(CPU) for op in ops}


def constants():
  free = tf.constant(1.0, name="free")
  one, two = (tf.constant(1.0, name=name) for name in ("one", "two"))
  tf.add_n([free, one, two], name="sum")
  with tf.device(CPU + "1"):
    tf.negative(tf.constant(1.0, name="own"), name="planned")


@pytest.mark.parametrize(
  ("plan", "expected"),
  [
    # An op that the plan lacks follows its first placed input, if any.
    (
      plan_of({"one": CPU + "1", "two": CPU + "2"}),
      {"free": "", "one": "1", "two": "2", "sum": "1"},
    ),
    # The user's own device holds where the plan is silent.
    (plan_of({"planned": CPU + "2"}), {"own": "1", "planned": "2"}),
    # An op of another type is not the planned one.
    (plan_of({"one": CPU + "1"}, types={"one": "MatMul"}), {"one": ""}),
    (plan_of({"one": CPU + "1"}, types={"one": "Const"}), {"one": "1"}),
  ],
)
def test_ops_are_on_planned_devices_and_others_beside_them(plan, expected):
  assert _devices(plan, constants).items() >= expected.items()


def test_an_unplanned_gradient_follows_its_forward_op():
  def step():
    x = tf.constant([[1.0]], name="x")
    with tf.GradientTape() as tape:
      tape.watch(x)
      with tf.name_scope("layer"):
        y = tf.matmul(x, x, name="MatMul")
    tape.gradient(y, x)

  got = _devices(plan_of({"x": CPU + "1", "layer/MatMul": CPU + "2"}), step)
  products = [n for n in got if n.startswith("gradient_tape/layer/MatMul/MatM")]
  assert len(products) == 2
  assert {got[name] for name in products} == {"2"}


def test_a_layer_plan_takes_the_innermost_named_layer():
  inner = keras.layers.Dense(2, name="inner")
  outer = keras.Sequential([keras.Input((2,)), inner], name="outer")
  plan = plan_of(
    {}, layers={"outer": CPU + "1", "inner": CPU + "2"}, is_of_layers=True
  )
  got = _devices(plan, lambda: outer(tf.ones((1, 2), name="x")) * 2.0)
  assert next(d for n, d in got.items() if n.endswith("/MatMul")) == "2"

"""The order in which an op's device is decided, on hand-made graphs."""

import keras
import pytest
import tensorflow as tf

from tfplace.keras.devices import DeviceFunction
from tfplace.plan.device_map import DeviceMap

CPU = "/job:localhost/replica:0/task:0/device:CPU:"


def _devices(plan, function, *args):
  """Op name -> device index after tracing `function` under `plan`."""

  @tf.function(autograph=False)
  def traced():
    graph = tf.compat.v1.get_default_graph()
    with graph.device(DeviceFunction(plan)):
      function(*args)

  ops = traced.get_concrete_function().graph.get_operations()
  return {op.name: op.device.removeprefix(CPU) for op in ops}


def test_the_plan_names_the_device():
  def step():
    tf.add(tf.constant(1.0, name="a"), 2.0, name="b")

  got = _devices(DeviceMap({"a": CPU + "1", "b": CPU + "2"}), step)
  assert (got["a"], got["b"]) == ("1", "2")


def test_an_op_of_another_type_is_not_the_planned_op():
  def step():
    tf.constant(1.0, name="a")

  assert _devices(DeviceMap({"a": CPU + "1"}, {"a": "MatMul"}), step)["a"] == ""
  assert _devices(DeviceMap({"a": CPU + "1"}, {"a": "Const"}), step)["a"] == "1"


def test_an_unplanned_op_follows_its_first_placed_input():
  def step():
    free = tf.constant(1.0, name="free")
    one, two = tf.constant(1.0, name="one"), tf.constant(1.0, name="two")
    tf.add_n([free, one, two], name="sum")

  got = _devices(DeviceMap({"one": CPU + "1", "two": CPU + "2"}), step)
  assert got["free"] == ""
  assert got["sum"] == "1"


def test_an_unplanned_gradient_follows_its_forward_op():
  def step():
    x = tf.constant([[1.0]], name="x")
    with tf.GradientTape() as tape:
      tape.watch(x)
      with tf.name_scope("layer"):
        y = tf.matmul(x, x, name="MatMul")
    tape.gradient(y, x)

  got = _devices(DeviceMap({"x": CPU + "1", "layer/MatMul": CPU + "2"}), step)
  products = [n for n in got if n.startswith("gradient_tape/layer/MatMul/MatM")]
  assert len(products) == 2
  assert {got[name] for name in products} == {"2"}


def test_an_op_on_a_variable_is_where_the_variable_is():
  with tf.device(CPU + "2"):
    variable = tf.Variable([1.0])

  def step():
    variable.assign_add([1.0], name="update")
    tf.identity(variable.read_value(), name="copy")

  got = _devices(DeviceMap({"update": CPU + "1"}), step)
  assert got["update"] == "2"
  assert got["copy"] == "2"  # its input is read there


def test_the_users_own_device_holds_where_the_plan_is_silent():
  def step():
    with tf.device(CPU + "1"):
      one = tf.constant(1.0, name="one")
      tf.negative(one, name="two")

  got = _devices(DeviceMap({"two": CPU + "2"}), step)
  assert (got["one"], got["two"]) == ("1", "2")


def test_a_loop_body_inherits_and_its_variable_stays_put():
  with tf.device(CPU + "2"):
    variable = tf.Variable(1.0)
  seen = {}

  class Recording(DeviceFunction):
    def __call__(self, op):
      seen[op.name] = super().__call__(op).removeprefix(CPU)
      return CPU + seen[op.name] if seen[op.name] else ""

  @tf.function(autograph=False)
  def traced():
    with tf.compat.v1.get_default_graph().device(Recording(DeviceMap({}))):
      tf.while_loop(
        lambda i: i < 3.0,
        lambda i: [variable.assign_add(i, name="update") * 1.0],
        [tf.constant(0.0)],
        name="loop",
      )

  traced()
  assert [d for name, d in seen.items() if name.endswith("update")] == ["2"]
  assert seen["loop"] == "2"
  assert variable.numpy() == pytest.approx(4.0)  # 1 + 0 + 1 + 2


def test_a_layer_plan_takes_the_innermost_named_layer():
  inner = keras.layers.Dense(2, name="inner")
  outer = keras.Sequential([keras.Input((2,)), inner], name="outer")
  plan = DeviceMap({}, layers={"outer": CPU + "1", "inner": CPU + "2"})
  got = _devices(plan, lambda: outer(tf.ones((1, 2), name="x")) * 2.0)
  assert next(d for n, d in got.items() if n.endswith("/MatMul")) == "2"

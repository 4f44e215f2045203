"""Edges, kinds and colocation of a traced step."""

import pytest
import tensorflow as tf

from tfplace import extraction as extract
from tfplace.errors import ExtractionError


def _step(build):
  """The skeleton of the graph that `build` makes, nothing pruned."""
  graph = tf.Graph()
  with graph.as_default():
    build()
  traced = extract.TracedStep(
    "test", graph.as_graph_def(), {}, (), (), {}, False
  )
  return extract.skeleton(traced)


def _kinds(build):
  skeleton = _step(build)
  return dict(zip(skeleton.names, map(set, skeleton.kinds), strict=True))


def _groups(skeleton):
  return dict(zip(skeleton.names, skeleton.colocation, strict=True))


BOTH = {"CPU", "GPU"}


def _unique(x):
  """An op that TensorFlow has for CPUs only."""
  return tf.raw_ops.UniqueV2(x=x, axis=[0], name="unique").y


def test_edges_are_single_and_control_edges_stay():
  def build():
    a = tf.constant(1.0, name="a")
    b, c = tf.split(tf.stack([a, a], name="s"), 2, name="p")
    tf.add(a, tf.squeeze(c, name="q"), name="sum")
    tf.squeeze(b, name="r")

  graph = tf.Graph()
  with graph.as_default():
    build()
  graph_def = graph.as_graph_def()
  # TensorFlow's Python API leaves out a control edge beside a data edge.
  next(n for n in graph_def.node if n.name == "sum").input.append("^a")
  traced = extract.TracedStep("test", graph_def, {}, (), (), {}, False)
  skeleton = extract.skeleton(traced)
  at = {name: i for i, name in enumerate(skeleton.names)}
  named = {
    (skeleton.names[s], o, skeleton.names[d]) for s, o, d in skeleton.edges
  }
  assert len(skeleton.edges) == len(named)
  assert {e for e in named if e[2] == "s"} == {("a", 0, "s")}
  assert {e for e in named if e[2] == "sum"} == {
    ("a", 0, "sum"),
    ("a", -1, "sum"),
    ("q", 0, "sum"),
  }
  assert ("p", 1, "q") in named
  assert ("p", 0, "r") in named
  assert skeleton.num_outputs[at["p"]] == 2


def test_kinds_follow_the_kernels_and_their_types():
  def build():
    x = tf.compat.v1.placeholder(tf.float32, (2, 2), "x")
    tf.matmul(x, x, name="matmul")
    tf.strings.upper(tf.constant("a", name="text"), name="upper")
    _unique(tf.reshape(x, [-1]))
    tf.shape(x, name="shape")
    tf.add(tf.constant(1, name="one"), 2, name="int_add")
    tf.no_op("nothing")

  kinds = _kinds(build)
  assert kinds["x"] == BOTH  # DEFAULT
  assert kinds["matmul"] == BOTH
  assert kinds["upper"] == {"CPU"}
  assert kinds["unique"] == {"CPU"}
  assert kinds["shape"] == BOTH  # int32 in host memory
  assert kinds["int_add"] == BOTH
  assert kinds["nothing"] == BOTH


def test_integer_matmul_has_no_gpu_kernel_and_float_has():
  def build():
    for dtype in (tf.int64, tf.float64):
      x = tf.compat.v1.placeholder(dtype, (2, 2), f"x_{dtype.name}")
      tf.matmul(x, x, name=f"matmul_{dtype.name}")

  kinds = _kinds(build)
  assert kinds["matmul_int64"] == {"CPU"}
  assert kinds["matmul_float64"] == BOTH


@pytest.mark.parametrize(
  ("body", "expected"),
  [
    (lambda x: x * 2.0, BOTH),
    (lambda x: x + tf.reduce_sum(_unique(x[None])), {"CPU"}),
  ],
)
def test_a_loop_runs_where_every_op_of_its_body_runs(body, expected):
  @tf.function
  def step(x):
    return tf.while_loop(
      lambda x: x < 100.0, lambda x: (tf.ensure_shape(body(x), ()),), (x,)
    )

  concrete = step.get_concrete_function(tf.TensorSpec((), tf.float32))
  skeleton = extract.skeleton(extract.trace_function(concrete))
  loop = next(i for i, t in enumerate(skeleton.types) if "While" in t)
  assert set(skeleton.kinds[loop]) == expected


def test_a_handle_and_everything_that_uses_it_share_a_group():
  def build():
    v = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), name="v")
    w = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), name="w")
    through = tf.identity(v, "through")
    read = tf.raw_ops.ReadVariableOp(
      resource=through, dtype=tf.float32, name="read"
    )
    tf.raw_ops.AssignVariableOp(resource=w, value=read, name="assign")
    tf.square(read, "square")

  groups = _groups(_step(build))
  assert groups["v"] == groups["through"] == groups["read"] == "v"
  assert groups["w"] == groups["assign"] == "w"
  assert groups["square"] is None


def test_an_op_on_two_handles_joins_their_groups():
  def build():
    handles = [
      tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), name=n) for n in "vab"
    ]
    tf.raw_ops.ResourceApplyMomentum(
      var=handles[0],
      accum=handles[1],
      lr=0.1,
      grad=1.0,
      momentum=0.9,
      name="apply",
    )
    tf.raw_ops.ReadVariableOp(resource=handles[2], dtype=tf.float32, name="r")

  groups = _groups(_step(build))
  assert groups["v"] == groups["a"] == groups["apply"] == "v"
  assert groups["b"] == groups["r"] == "b"


def test_handles_of_one_shared_name_are_one_resource():
  def build():
    for name in ("first", "second"):
      tf.raw_ops.VarHandleOp(
        dtype=tf.float32, shape=(), shared_name="same", name=name
      )
    tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), name="other")

  groups = _groups(_step(build))
  assert groups["first"] == groups["second"] == "first"
  assert groups["other"] is None


def test_class_constraints_and_references_colocate():
  def build():
    a = tf.constant(1.0, name="a")
    b = tf.square(a, "b")
    with tf.compat.v1.colocate_with(b.op):
      tf.square(a, "c")
    v = tf.compat.v1.Variable(1.0, use_resource=False, name="v")
    tf.compat.v1.assign(v, 2.0, name="assign")

  groups = _groups(_step(build))
  assert groups["b"] == groups["c"] == "b"
  assert groups["a"] is None
  assert groups["v"] == groups["assign"]
  assert groups["v"] is not None


def test_tensor_lists_stay_where_they_were_made():
  def build():
    handle = tf.raw_ops.TensorListReserve(
      element_shape=tf.constant([], tf.int32),
      num_elements=3,
      element_dtype=tf.float32,
      name="list",
    )
    handle = tf.raw_ops.TensorListSetItem(
      input_handle=handle, index=0, item=1.0, name="set"
    )
    tf.raw_ops.TensorListStack(
      input_handle=handle,
      element_shape=tf.constant([], tf.int32),
      element_dtype=tf.float32,
      name="stack",
    )

  groups = _groups(_step(build))
  assert groups["list"] == groups["set"] == groups["stack"] == "list"


def test_a_loop_of_tensorflow_1_is_cut_at_its_back_edge():
  def build():
    with tf.compat.v1.variable_scope("loop"):
      tf.compat.v1.disable_control_flow_v2()
      try:
        tf.compat.v1.while_loop(lambda i: i < 10, lambda i: i * 2, [1])
      finally:
        tf.compat.v1.enable_control_flow_v2()

  skeleton = _step(build)
  groups = _groups(skeleton)
  assert "NextIteration" in skeleton.types
  nexts = {
    n
    for n, t in zip(skeleton.names, skeleton.types, strict=True)
    if t == "NextIteration"
  }
  assert not any(skeleton.names[s] in nexts for s, _, _ in skeleton.edges)
  merge = next(
    n
    for n, t in zip(skeleton.names, skeleton.types, strict=True)
    if t == "Merge"
  )
  assert {groups[n] for n in nexts} == {groups[merge]}
  assert groups[merge] is not None


def test_an_unknown_input_is_refused_by_name():
  graph_def = tf.compat.v1.GraphDef()
  graph_def.node.add(name="a", op="NoOp", input=["^ghost"])
  traced = extract.TracedStep("t", graph_def, {}, (), (), {}, False)
  with pytest.raises(ExtractionError, match=r"'a'.*'ghost'"):
    extract.skeleton(traced)


def test_the_package_imports_without_tensorflow():
  import subprocess
  import sys

  code = "import sys, tfplace.extraction;sys.exit('tensorflow' in sys.modules)"
  assert (
    subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
  )

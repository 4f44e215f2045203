"""Edges, kinds and colocation of a traced step."""

import pytest
import tensorflow as tf

from tfplace.extraction import structure
from tfplace.extraction.functions import trace_function
from tfplace.extraction.traced import TracedStep


def _step(build):
  """The skeleton of the graph that `build` makes, nothing pruned."""
  graph = tf.Graph()
  with graph.as_default():
    build()
  traced = TracedStep("test", graph.as_graph_def(), {}, (), (), {}, False)
  return structure.skeleton(traced)


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
  traced = TracedStep("test", graph_def, {}, (), (), {}, False)
  skeleton = structure.skeleton(traced)
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
    y = tf.compat.v1.placeholder(tf.int64, (2, 2))
    tf.matmul(y, y, name="int_matmul")
    tf.strings.upper(tf.constant("a", name="text"), name="upper")
    _unique(tf.reshape(x, [-1]))
    tf.shape(x, name="shape")
    tf.add(tf.constant(1, name="one"), 2, name="int_add")
    tf.no_op("nothing")

  kinds = _kinds(build)
  assert kinds["x"] == BOTH  # DEFAULT
  assert kinds["matmul"] == BOTH
  assert kinds["int_matmul"] == {"CPU"}
  assert kinds["upper"] == {"CPU"}
  assert kinds["unique"] == {"CPU"}
  assert kinds["shape"] == BOTH  # int32 in host memory
  assert kinds["int_add"] == BOTH
  assert kinds["nothing"] == BOTH


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
  skeleton = structure.skeleton(trace_function(concrete))
  loop = next(i for i, t in enumerate(skeleton.types) if "While" in t)
  assert set(skeleton.kinds[loop]) == expected


def _handle(name, shared_name=""):
  return tf.raw_ops.VarHandleOp(
    dtype=tf.float32, shape=(), shared_name=shared_name, name=name
  )


def test_colocation_follows_handles_references_lists_and_classes():
  def build():
    raw = tf.raw_ops
    v, w, accum = map(_handle, ("v", "w", "accum"))
    through = tf.identity(v, "through")
    read = raw.ReadVariableOp(resource=through, dtype=tf.float32, name="read")
    raw.AssignVariableOp(resource=w, value=read, name="assign")
    raw.ResourceApplyMomentum(
      var=w, accum=accum, lr=0.1, grad=1.0, momentum=0.9, name="apply"
    )
    for name in ("first", "second"):
      _handle(name, "same")
    a = tf.square(read, "a")
    b = tf.square(a, "b")
    with tf.compat.v1.colocate_with(b.op):
      tf.square(a, "c")
    old = tf.compat.v1.Variable(1.0, use_resource=False, name="old")
    tf.compat.v1.assign(old, 2.0, name="assign_old")
    shape = tf.constant([], tf.int32)
    element = {"element_shape": shape, "element_dtype": tf.float32}
    held = raw.TensorListReserve(num_elements=3, name="list", **element)
    held = raw.TensorListSetItem(
      input_handle=held, index=0, item=1.0, name="set"
    )
    raw.TensorListStack(input_handle=held, name="stack", **element)

  groups = _groups(_step(build))
  found = {}
  for name, group in groups.items():
    found.setdefault(group, set()).add(name)
  assert found["v"] == {"v", "through", "read"}
  assert found["w"] == {"w", "accum", "assign", "apply"}  # by `apply`
  assert found["first"] == {"first", "second"}  # by their shared name
  assert found["b"] == {"b", "c"}
  assert found["list"] == {"list", "set", "stack"}
  assert groups["a"] is None
  assert groups["old"] == groups["assign_old"] is not None


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
  named = list(zip(skeleton.names, skeleton.types, strict=True))
  nexts = {name for name, kind in named if kind == "NextIteration"}
  assert not any(skeleton.names[s] in nexts for s, _, _ in skeleton.edges)
  merge = next(name for name, kind in named if kind == "Merge")
  assert {groups[n] for n in nexts} == {groups[merge]}
  assert groups[merge] is not None

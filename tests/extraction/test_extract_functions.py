"""Inlining function calls changes no number, order or op."""

import pytest
import tensorflow as tf

from tests.testing.traced_steps import run_steps
from tfplace.errors import ExtractionError
from tfplace.extraction import inline, structure
from tfplace.extraction.functions import trace_function


def _trace(function, *specs):
  return trace_function(function.get_concrete_function(*specs))


FLOAT = tf.TensorSpec((), tf.float32)


@pytest.mark.parametrize("called", [False, True])
def test_a_constant_of_an_untaken_branch_is_dead(called):
  @tf.function
  def constant(x):
    return tf.constant(8.0)

  @tf.function
  def step(x):
    pure = constant if called else lambda x: tf.constant(8.0)
    return tf.cond(
      x > 0.0, lambda: pure(x), lambda: tf.exp(tf.sin(tf.cos(x))) * 0.0
    )

  traced = _trace(step, FLOAT)
  (x,) = [feed.tensor for feed in traced.feeds.values()]
  inputs = [(-1.0) ** i for i in range(40)]
  steps = run_steps(traced, [{x: v} for v in inputs])
  assert steps == [[8.0] if v > 0 else [0.0] for v in inputs]
  for merge in (n for n in traced.graph_def.node if n.op == "Merge"):
    for branch in merge.input[:2]:
      needed = structure.prune(traced.graph_def, [branch]).node
      assert "Switch" in {node.op for node in needed}


def test_an_if_that_tensorflow_does_not_lower_stays_one_op():
  @tf.function
  def step(x):
    return tf.cond(x > 0.0, lambda: x * 2.0, lambda: x - 1.0)

  concrete = step.get_concrete_function(FLOAT)
  graph_def = concrete.graph.as_graph_def()
  (node,) = [n for n in graph_def.node if n.op in ("If", "StatelessIf")]
  del node.attr["_lower_using_switch_merge"]
  flat = inline.inline_functions(graph_def).graph_def
  assert node.op in [n.op for n in flat.node]
  assert len(flat.library.function) == 2


@pytest.mark.parametrize(("taken", "expected"), [(True, 6.0), (False, 2.0)])
def test_an_if_of_constant_predicate_becomes_its_branch(taken, expected):
  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, (), "x")
    branches = [
      tf.function(f).get_concrete_function(FLOAT)
      for f in (lambda x: x * 2.0, lambda x: x - 1.0)
    ]
    for branch in branches:
      branch.add_to_graph(graph)
    (y,) = tf.raw_ops.If(
      cond=tf.constant(taken),
      input=[x],
      Tout=[tf.float32],
      then_branch=branches[0],
      else_branch=branches[1],
      name="choice",
    )
    tf.identity(y, "y")
  result = inline.inline_functions(graph.as_graph_def())
  types = {node.op for node in result.graph_def.node}
  assert not types & {"If", "StatelessIf"}
  assert not result.graph_def.library.function
  with tf.Graph().as_default():
    tf.import_graph_def(result.graph_def, name="")
    with tf.compat.v1.Session() as session:
      assert session.run("y:0", {"x:0": 3.0}) == expected


def test_a_missing_function_is_refused_by_name():
  graph_def = tf.compat.v1.GraphDef()
  node = graph_def.node.add(name="start", op="PartitionedCall")
  node.attr["f"].func.name = "nowhere"
  with pytest.raises(ExtractionError, match=r"'start'.*'nowhere'"):
    inline.inline_functions(graph_def)


def test_numbered_names_do_not_meet_others_of_the_same_body():
  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, (), "x")
    tf.identity(x, "s")  # takes the name that the body's first op wants

    @tf.function
    def f(x):
      return tf.square(x, name="s") + tf.exp(x, name="s_1")

    tf.identity(f(x), name="y")
  flat = inline.inline_functions(graph.as_graph_def()).graph_def
  names = [node.name for node in flat.node]
  assert len(set(names)) == len(names)
  with tf.Graph().as_default():
    tf.import_graph_def(flat, name="")
    with tf.compat.v1.Session() as session:
      assert session.run("y:0", {"x:0": 0.0}) == 1.0  # 0 + 1


def test_an_unknown_batch_is_filled_another_dimension_refused():
  @tf.function
  def step(x):
    return tf.reduce_sum(x, axis=1)

  open_batch = step.get_concrete_function(tf.TensorSpec((None, 3), name="x"))
  traced = trace_function(open_batch, batch_size=4)
  assert [f.shape for f in traced.feeds.values()] == [(4, 3)]
  open_both = step.get_concrete_function(tf.TensorSpec((None, None), name="x"))
  with pytest.raises(ExtractionError, match="'x'"):
    trace_function(open_both, batch_size=4)

"""`fit` holds the ops of a placed model to the order of its plan."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ApplyError
from tfplace.graph import Placement
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.order import RANK
from tfplace.keras.controller import controller_of
from tfplace.variants import op_order


@pytest.fixture
def chained(monkeypatch):
  """Chained ops: graph, turns and edges of each trace."""
  found = []
  chain_ops = op_order.chain_ops

  def recording(graph, turns):
    found.append((graph, turns, chain_ops(graph, turns)))
    return found[-1][2]

  monkeypatch.setattr(op_order, "chain_ops", recording)
  return found


def by_rank(model, name):
  """Places the split model at random, by rank; returns the placement."""
  given = at.split_placement(model, VariantConfig(2))
  placement = Placement(given.problem.in_order(RANK), given.devices)
  tfplace.place_model(model, placement=placement)
  return placement


def in_turn(graph, turns):
  """Share of the pairs of ops on one device that run in their turns."""
  order = op_order.total_order(graph.get_operations(), turns)
  right = pairs = 0
  for device in {op.device for op in order}:
    own = [op for op in order if op.device == device]
    own = np.array([turns[op.name] for op in own if op.name in turns], int)
    right += np.triu(own[:, None] < own[None, :], 1).sum()
    pairs += len(own) * (len(own) - 1) / 2
  return right / pairs


def test_a_split_model_runs_by_rank_in_its_turns(chained):
  name = "dense"
  model = at.build_fitted(name)
  placement = by_rank(model, name)
  assert model.placement.order == "rank"
  with at.recorded() as ran:
    found = at.fitted(model, name)
  at.assert_same(found, at.unplaced_fit(name))
  graph, turns, edges = chained[0]
  assert edges > 50
  # The traced graph is nearly the planned one, and what has a state runs as
  # the program says.
  assert in_turn(graph, turns) > 0.9
  assert len(turns) > 0.3 * placement.problem.graph.num_ops
  # The graph that ran has control edges between ops of one device.
  names = {node.name for node in ran}
  within = [
    before
    for node in ran
    for before in node.controls
    if before in names and {before, node.name} <= set(turns)
  ]
  assert len(within) > 20


def test_no_order_makes_a_cycle_or_another_result(chained):
  name = "convolutional"
  model = at.build_fitted(name)
  by_rank(model, name)
  controller = controller_of(model)
  shuffled = np.random.default_rng(0).permutation(controller.plan.op_order)
  controller.plan = dataclasses.replace(
    controller.plan, op_order=tuple(shuffled.tolist())
  )
  found = at.fitted(model, name)
  at.assert_same(found, at.unplaced_fit(name), share=1e-4)
  assert chained[0][2] > 50


def test_a_plan_by_rank_keeps_its_order_in_a_file(tmp_path, chained):
  model = at.build_fitted("dense")
  options = {"batch_size": at.BATCH, "microbatches": 2, "order": "rank"}
  plan = tfplace.plan_model(
    model, at.local_cluster(), strategy="pipeline", **options
  )
  plan.save(tmp_path / "p.json")
  data = json.loads((tmp_path / "p.json").read_text())
  # A search may start from its devices alone, but they do not tell the turns.
  data.pop("op_order")
  with pytest.raises(ApplyError, match="order 'rank' without op_order"):
    tfplace.place_model(model, placement=data)
  loaded = tfplace.Plan.load(tmp_path / "p.json")
  assert loaded == plan and loaded.op_order
  model = at.build_fitted("dense")
  tfplace.place_model(model, placement=tmp_path / "p.json")
  assert model.placement.order == "rank"
  assert controller_of(model).plan.op_order == plan.op_order
  at.assert_same(at.fitted(model, "dense"), at.unplaced_fit("dense"))
  assert chained


def test_the_order_of_all_ops_by_hand():
  with tf.Graph().as_default() as graph:
    x = tf.constant(1.0, name="x")
    a = tf.add(x, x, name="a")
    tf.add(x, x, name="b")
    tf.add(a, a, name="c")
    turns = {"c": 0, "a": 1, "b": 2}
    order = op_order.total_order(graph.get_operations(), turns)
    # c waits for a; b's turn is after both.
    assert [op.name for op in order] == ["x", "a", "c", "b"]
    assert op_order.chain_ops(graph, turns) == 1  # a feeds c already
    assert graph.get_operation_by_name("b").control_inputs == [
      graph.get_operation_by_name("c")
    ]


@pytest.mark.parametrize("dtype", [tf.int32, tf.float32])
def test_a_concatenation_of_constants_runs_in_a_chain(dtype):
  @tf.function(autograph=False)
  def step(x):
    with tf.device("CPU:0"):
      first = tf.identity(x, name="first")
      ones = [tf.ones((1,), dtype), tf.ones((1,), dtype)]
      joined = tf.concat([x[:1], *ones], 0, name="joined")
      last = tf.identity(joined, name="last")
    graph = tf.compat.v1.get_default_graph()
    turns = {"first": 0, "joined": 1, "last": 2}
    # first -> last: Grappler counts control edges of "joined" as its inputs.
    assert op_order.chain_ops(graph, turns) == 1
    return last, first

  joined, _ = step(tf.constant([5, 6, 7], dtype))
  assert joined.numpy().tolist() == [5, 1, 1]

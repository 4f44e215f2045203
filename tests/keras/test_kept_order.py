"""`fit` holds the ops of a placed model to the order of its plan."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tests.testing.microbatched_fits import (
  BATCH,
  MODELS,
  assert_same,
  build,
  fitted,
  placement_of,
  unplaced,
)
from tests.testing.slow import slow, slow_but
from tfplace.core import Placement
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.order import RANK
from tfplace.errors import ApplyError, FormatError, TfplaceError
from tfplace.formats import results
from tfplace.keras import op_order
from tfplace.keras.controller import controller_of


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


def by_rank(model, microbatches):
  placement = placement_of(model, microbatches)
  return Placement(placement.problem.in_order(RANK), placement.devices)


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


@pytest.mark.parametrize("name", slow_but(("masked_lstm",), MODELS))
def test_a_split_model_by_rank_trains_as_the_unplaced_one(name, chained):
  expected = unplaced(name)
  model = build(name)
  placement = by_rank(model, MicrobatchConfig(2))
  tfplace.place_model(model, placement=placement)
  assert model.placement.order == "rank"
  with at.recorded() as ran:
    assert_same(fitted(model, name), expected)
  graph, turns, edges = chained[0]
  assert edges > 50
  # The traced graph is nearly the planned one, and what has a state runs as
  # the program says.
  share = in_turn(graph, turns)
  assert share > 0.9
  assert len(turns) > 0.3 * placement.problem.graph.num_ops
  # The graph that ran has control edges between ops of one device.
  nodes = {node.name: node for node in ran}
  waits = [(b, node) for node in ran for b in node.controls if b in nodes]
  within = [b for b, n in waits if {b, n.name} <= set(turns)]
  assert len(within) > 20


SEEDS = [(name, seed) for name in MODELS for seed in range(3)]
_FAST = (("dense", 0), ("dense", 1), ("masked_lstm", 0))


@pytest.mark.parametrize(
  ("name", "seed"),
  [case if case in _FAST else slow(*case) for case in SEEDS],
)
def test_no_order_makes_a_cycle_or_another_result(name, seed, chained):
  expected = unplaced(name, epochs=1)
  model = build(name)
  tfplace.place_model(model, placement=by_rank(model, MicrobatchConfig(2)))
  controller = controller_of(model)
  names = list(controller.plan.device_map.turns)
  turns = np.random.default_rng(seed).permutation(len(names)).tolist()
  shuffled = dataclasses.replace(
    controller.plan.device_map, turns=dict(zip(names, turns, strict=True))
  )
  controller.plan = dataclasses.replace(controller.plan, device_map=shuffled)
  assert_same(fitted(model, name, epochs=1), expected)
  assert chained[0][2] > 50


@pytest.mark.parametrize("kind", [slow("lstm"), "conv_norm", "subclassed"])
def test_unsplit_models_keep_an_order_too(kind, chained):
  expected = at.unplaced(kind)[:3]
  model = at.build(kind)
  _, placement = at.unit_placement(model, kind)
  ordered = Placement(placement.problem.in_order(RANK), placement.devices)
  tfplace.place_model(model, placement=ordered)
  np.testing.assert_allclose(at.losses(model, kind, 3), expected, rtol=1e-5)
  assert chained[0][2] > 20


def test_by_arrival_nothing_is_chained(chained):
  model = build("dense")
  placement = placement_of(model, MicrobatchConfig(2))
  tfplace.place_model(model, placement=placement)
  fitted(model, "dense", epochs=1)
  assert not chained


def test_a_model_is_planned_by_rank_and_applied(chained):
  expected = unplaced("dense")
  model = build("dense")
  tfplace.place_model(
    model,
    at.local_cluster(),
    strategy="pipeline",
    batch_size=BATCH,
    order="rank",
    microbatches=2,
  )
  assert model.placement.order == "rank"
  assert_same(fitted(model, "dense"), expected)
  assert chained


def test_a_plan_by_rank_keeps_its_order_in_a_file(tmp_path):
  model = build("dense")
  plan = tfplace.plan_model(
    model,
    at.local_cluster(),
    strategy="pipeline",
    batch_size=BATCH,
    order="rank",
    microbatches=2,
  )
  plan.save(tmp_path / "p.json")
  data = json.loads((tmp_path / "p.json").read_text())
  # A search may start from its devices alone, but they do not tell the turns.
  data.pop("op_order")
  with pytest.raises(FormatError, match="'rank' needs op_order"):
    tfplace.place_model(model, placement=data)
  own = by_plan(model, plan)
  model = build("dense")
  tfplace.place_model(model, placement=tmp_path / "p.json")
  assert model.placement.order == "rank"
  assert controller_of(model).plan.device_map.turns == own
  model.placement.save(tmp_path / "again.json")
  assert results.load_op_order(tmp_path / "again.json") == list(own)


def by_plan(model, plan):
  tfplace.place_model(model, placement=plan)
  return controller_of(model).plan.device_map.turns


def test_a_microbatched_model_is_planned_in_either_order(chained):
  expected = unplaced("dense")
  model = build("dense")
  plan = tfplace.plan_model(
    model,
    at.local_cluster(),
    strategy="pipeline",
    batch_size=BATCH,
    microbatches=2,
    costs="estimated",
  )
  assert "devices run their ops" in str(plan).lower()
  whole = tfplace.plan_model(
    model, at.local_cluster(), strategy="m_topo", batch_size=BATCH
  )
  assert whole.order == "arrival"
  assert "devices run their ops" not in str(whole).lower()
  tfplace.place_model(model, placement=plan)
  assert_same(fitted(model, "dense"), expected)
  assert bool(chained) == (plan.order == "rank")


def test_a_bad_order_is_refused():
  with pytest.raises(TfplaceError, match=r"'fifo'.*arrival, rank, auto"):
    tfplace.place_model(build("dense"), at.local_cluster(), order="fifo")
  model = build("dense")
  placement = placement_of(model, MicrobatchConfig(2))
  with pytest.raises(ApplyError, match="order='rank' is for planning"):
    tfplace.place_model(model, placement=placement, order="rank")


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

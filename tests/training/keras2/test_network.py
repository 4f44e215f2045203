"""The placement network: masks, padding, segments, sizes."""

import numpy as np
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned import features
from tfplace.learned.decisions import group_decisions
from tfplace.training.encoder.agent import DECISION, GRAPH, GraphBank
from tfplace.training.encoder.gdp import (
  GdpActor,
  NetworkConfig,
  PlacementNetwork,
)
from tfplace.training.encoder.network import (
  MaxPoolConv,
  SegmentAttention,
  graph_tensor,
)

SMALL = NetworkConfig(units=16, type_units=4, segment=8, pair_units=8)


def extracted(num_ops, seed, cluster=None, **kwargs):
  problem = problem_of(
    random_graph(num_ops, seed, **kwargs), cluster or gpus(2)
  )
  return features.extract(group_decisions(problem), axes=SMALL.axes)


def test_one_policy_serves_any_number_of_decisions_and_devices():
  policy = PlacementNetwork(SMALL)
  for num_ops, cluster in [(1, gpus(1)), (5, gpus(2)), (40, gpus(7, cpu=True))]:
    found = extracted(num_ops, 1, cluster, cpu_only=cluster.num_devices == 8)
    logits = policy(found.tensors()).numpy()
    assert logits.shape == (num_ops, cluster.num_devices)
    assert np.isfinite(logits).all()
    # A device without a kernel has no probability.
    probability = tf.nn.softmax(logits).numpy()
    assert ((probability > 0) == found.allowed).all()
  assert not found.allowed.all()


def test_logits_are_the_same_beside_a_larger_graph():
  small, large = extracted(6, 2), extracted(25, 3, gpus(4))
  policy = PlacementNetwork(SMALL)
  alone = policy(small.tensors()).numpy()
  bank = GraphBank([large, small], features.signature(SMALL.axes))
  actor, decision = GdpActor(bank, policy), [[0, 5, 2]] * 2
  observation = {
    GRAPH: tf.ones([2, 3], tf.int32),
    DECISION: tf.constant(decision),
  }
  distribution, _ = actor(observation)
  padded = distribution.logits.numpy()
  assert padded.shape == (2, 3, 4)
  np.testing.assert_allclose(padded[..., :2], alone[decision], atol=1e-6)
  # The small graph has no third device.
  assert (distribution.sample(100, seed=0) < 2).numpy().all()


def test_attention_equals_a_plain_transformer_xl():
  """An independent reference: one query at a time, in a Python loop."""
  units, segment, count = 8, 3, 8
  layer = SegmentAttention(units, heads=2, segment=segment)
  state = np.random.default_rng(0).normal(size=(count, units))
  state = tf.constant(state, tf.float32)
  gate = tf.linspace(0.5, 1.5, units)
  found = layer(state, gate).numpy()
  x = (state * gate).numpy()
  q, _, k, _, v, _, out, bias = [
    w.numpy().reshape(units, -1) for w in layer._attention.weights
  ]
  mixed = np.zeros((count, units))
  for i in range(count):
    begin = max(0, (i // segment - 1) * segment)  # the segment before
    end = min(count, (i // segment + 1) * segment)
    for h in (slice(0, 4), slice(4, 8)):
      score = x[begin:end] @ k[:, h] @ (x[i] @ q[:, h]) / 2.0  # sqrt(4)
      weight = np.exp(score - score.max())
      mixed[i, h] = weight / weight.sum() @ (x[begin:end] @ v[:, h])
  mixed = tf.constant(mixed @ out + bias[:, 0], tf.float32)
  one = layer._norms[0](state + mixed)
  two = layer._norms[1](one + layer._narrow(layer._wide(one * gate)))
  np.testing.assert_allclose(found, two.numpy(), atol=1e-4)


def test_no_gradient_flows_into_the_cached_segment():
  layer = SegmentAttention(4, heads=1, segment=2)
  state = tf.Variable(
    np.random.default_rng(1).normal(size=(4, 4)), dtype=tf.float32
  )
  with tf.GradientTape() as tape:
    last = tf.reduce_sum(layer(state, tf.ones(4))[2:] ** 3)
  gradient = tape.gradient(last, state).numpy()
  assert (gradient[:2] == 0).all() and (gradient[2:] != 0).any()


def test_message_is_the_maximum_over_neighbors_and_zero_without():
  conv = MaxPoolConv(3)
  state = tf.constant(np.random.default_rng(2).normal(size=(4, 2)), tf.float32)
  edge = tf.constant(np.random.default_rng(3).normal(size=(3, 1)), tf.float32)
  src, dst = tf.constant([0, 1, 3]), tf.constant([2, 2, 1])
  graph = graph_tensor(state, edge, src, dst)
  found = conv(graph, edge_set_name="feeds").numpy()
  kernel, (of_edge, bias) = conv._of_node.kernel, conv._of_edge.weights
  message = tf.sigmoid(
    tf.gather(state, src) @ kernel + edge @ of_edge + bias
  ).numpy()
  np.testing.assert_allclose(found[2], np.maximum(message[0], message[1]))
  np.testing.assert_allclose(found[1], message[2], rtol=1e-6)
  assert (found[[0, 3]] == 0).all()


def test_recomputed_gradients_are_those_of_one_pass():
  given = extracted(50, 6, gpus(3)).tensors()
  policy = PlacementNetwork(SMALL)
  policy(given)
  upstream = tf.random.stateless_normal([50, 3], seed=[1, 2])
  found = []
  for policy.recomputes in (False, True):
    with tf.GradientTape() as tape:
      logits = policy(given)
    gradients = tape.gradient(logits, policy.trainable_variables, upstream)
    found.append([logits, *map(tf.convert_to_tensor, gradients)])
  # Some are small differences of large parts.
  rounding = 1e-5 * max(np.abs(g).max() for g in found[0])
  assert sum(np.abs(g).max() > 1e-3 for g in found[0]) > 60
  for once, again in zip(*found, strict=True):
    np.testing.assert_allclose(again, once, rtol=1e-3, atol=rounding)

"""Placeto's network against NumPy written the slow way."""

import numpy as np

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned.decisions import group_decisions
from tfplace.learned.placeto import features
from tfplace.learned.placeto.features import random_choices
from tfplace.learned.placeto.network import (
  NEVER,
  PlacetoNetwork,
  PlacetoNetworkConfig,
)

COUNT = 9
PER_DEVICE = ("on_device", "slower", "allowed")


def graph_of(devices=3, count=COUNT, **kwargs):
  problem = problem_of(random_graph(count, 1), gpus(devices, **kwargs))
  return features.extract(group_decisions(problem))


def states_of(graph, number, seed=0):
  rng = np.random.default_rng(seed)
  return {
    "placement": random_choices(graph.allowed, number, rng),
    "start": rng.random((number, graph.num_decisions)).astype(np.float32),
    "step": rng.integers(0, graph.num_decisions, number).astype(np.int32),
  }


def network_of(graph):
  """A network with random biases: zeros would hide where they belong."""
  network = PlacetoNetwork(PlacetoNetworkConfig(units=4, rounds=3))
  network((graph.tensors(), states_of(graph, 1)))
  rng = np.random.default_rng(2)
  for weight in network.variables:
    if weight.shape.rank == 1:
      weight.assign(0.3 * rng.normal(size=weight.shape))
  return network


def mlp(layer, row):
  """One row through an `Mlp`, in float64."""
  for (kernel, bias), relu in zip(layer._layers, layer._relus, strict=True):
    row = row @ kernel.numpy().astype(np.float64) + bias.numpy()
    row = np.maximum(row, 0) if relu else row
  return row


def features_of(graph, states, b, d, n):
  """Features of group n in state b seen from device d, as in the paper."""
  step = states["step"][b]
  return np.array(
    [
      graph.node[n, 0],  # cost
      graph.node[n, 1],  # output bytes
      n < step,  # visited
      n == step,  # current
      states["start"][b, n] - states["start"][b, step],
      states["placement"][b, n] == d,
      graph.on_device[n, d],
    ],
    np.float64,
  )


def embeddings_of(network, graph, states, b, d):
  """[N, 2U]: messages passed from group to group, one at a time."""
  count = graph.num_decisions
  first = [
    mlp(network._transform, features_of(graph, states, b, d, n))
    for n in range(count)
  ]
  found = []
  for along, message in zip((True, False), network._messages, strict=True):
    state = first
    for _ in range(network.config.rounds):
      after = []
      for n in range(count):
        feeds = graph.feeds[n] if along else graph.feeds[:, n]
        new = first[n]
        if feeds.any():
          terms = [mlp(message._f, state[u]) for u in np.flatnonzero(feeds)]
          new = new + mlp(message._g, sum(terms) / len(terms))
        after.append(new)
      state = after
    found.append(np.stack(state))
  return np.concatenate(found, axis=1)


def test_message_passing_equals_numpy():
  graph = graph_of()
  states, network = states_of(graph, 2), network_of(graph)
  given = network.features(graph.tensors(), states)
  found = network.embed(given, graph.feeds).numpy()
  found = found.reshape(COUNT, 2, 3, -1)
  for b in range(2):
    for d in range(3):
      expected = embeddings_of(network, graph, states, b, d)
      np.testing.assert_allclose(found[:, b, d], expected, rtol=1e-4, atol=1e-5)


def test_poolings_equal_numpy():
  graph = graph_of()
  network = network_of(graph)
  states = states_of(graph, 6)
  states["step"][:2] = 0, COUNT - 1  # no ancestors; no descendants
  rng = np.random.default_rng(3)
  rows = rng.normal(size=(COUNT, 6, 3, 8)).astype(np.float32)
  found = network.pool(
    rows.reshape(-1, 8), graph.ancestors, states["step"], 3
  ).numpy()
  found = found.reshape(6, 3, 32)
  for b, step in enumerate(states["step"]):
    before = set(np.flatnonzero(graph.ancestors[step]))
    after = set(np.flatnonzero(graph.ancestors[:, step]))
    beside = set(range(COUNT)) - before - after - {step}
    for d in range(3):
      parts = []
      for members, pooling in zip(
        (before, after, beside), network._poolings, strict=True
      ):
        total = sum(
          (mlp(pooling._f, rows[n, b, d]) for n in members), np.zeros(8)
        )
        share = max(len(members), 1)
        parts.append(mlp(pooling._g, total / share))
      expected = np.concatenate([*parts, rows[step, b, d]])
      np.testing.assert_allclose(found[b, d], expected, rtol=1e-4, atol=1e-5)


def test_logits_are_the_classifiers_less_twice_log_time():
  graph = graph_of(devices=2, cpu=True)
  network, states = network_of(graph), states_of(graph, 4)
  found = network((graph.tensors(), states)).numpy()
  for b in range(4):
    for d in range(3):
      rows = embeddings_of(network, graph, states, b, d)
      pooled = network.pool(
        rows[:, None, None].astype(np.float32).reshape(-1, 8),
        graph.ancestors,
        states["step"][b : b + 1],
        1,
      ).numpy()[0]
      expected = mlp(
        network._classifier, np.concatenate([pooled, graph.device[d]])
      )
      speed = 2.0 * graph.slower[states["step"][b], d]
      np.testing.assert_allclose(
        found[b, d], expected[0] - speed, rtol=1e-3, atol=1e-4
      )


def test_one_network_serves_any_number_of_groups_and_devices():
  network = PlacetoNetwork(PlacetoNetworkConfig(units=4, rounds=2))
  for devices, count in [(1, 1), (2, 30), (7, 12)]:
    graph = graph_of(devices, count, cpu=True)
    found = network((graph.tensors(), states_of(graph, 3))).numpy()
    assert found.shape == (3, devices + 1)
    assert np.isfinite(found).all()


def test_a_device_that_cannot_run_the_group_is_never_taken():
  problem = problem_of(random_graph(20, 1, cpu_only=True), gpus(2, cpu=True))
  graph = features.extract(group_decisions(problem))
  states = states_of(graph, 40)
  found = PlacetoNetwork()((graph.tensors(), states)).numpy()
  allowed = graph.allowed[states["step"]]
  assert not allowed.all()
  assert (found[~allowed] == NEVER).all() and (found[allowed] > -1e3).all()


def test_renaming_the_devices_renames_the_logits():
  """Devices are known by their features and by who is on them."""
  graph = graph_of()
  network, states = network_of(graph), states_of(graph, 5)
  swap = np.array([1, 0, 2])
  tensors = graph.tensors()
  swapped = {
    **tensors,
    **{name: tensors[name][:, swap] for name in PER_DEVICE},
    "device": tensors["device"][swap],
  }
  renamed = {**states, "placement": swap[states["placement"]].astype(np.int32)}
  np.testing.assert_allclose(
    network((swapped, renamed)).numpy()[:, swap],
    network((tensors, states)).numpy(),
    rtol=1e-4,
    atol=1e-5,
  )

"""Networks of the literature against NumPy, one number at a time."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned.decisions import NEVER, group_decisions
from tfplace.learned.sequence import placeto_features
from tfplace.training.sequence.networks import Seq2Seq
from tfplace.training.sequence.placeto_network import (
  PlacetoConfig,
  PlacetoNetwork,
)

UNITS, STEPS, DEVICES, COUNT = 6, 7, 3, 9
both_ways = pytest.mark.parametrize("is_bidirectional", [True, False])


def seq2seq_case(is_bidirectional):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, STEPS, 5)).astype(np.float32)
  device = rng.normal(size=(DEVICES, 4)).astype(np.float32)
  allowed = rng.random((2, STEPS, DEVICES)) < 0.7
  allowed[..., 1] = True
  noise = rng.gumbel(size=(2, STEPS, DEVICES)).astype(np.float32)
  return Seq2Seq(UNITS, is_bidirectional), (x, device, allowed, noise)


@both_ways
def test_decoding_takes_the_largest_logits_of_its_choices(is_bidirectional):
  model, given = seq2seq_case(is_bidirectional)
  *_, allowed, noise = given
  choices, logits = (found.numpy() for found in model(*given))
  assert ((logits > NEVER) == allowed).all()
  assert choices.tolist() == (logits + noise).argmax(axis=-1).tolist()
  _, again = model(*given[:3], np.zeros_like(noise), choices=choices)
  np.testing.assert_allclose(again, logits, atol=1e-6)


def placeto_case(number=3):
  graph = random_graph(COUNT, 1, cpu_only=True)
  problem = problem_of(graph, gpus(2, cpu=True))
  seen = placeto_features.extract(group_decisions(problem))
  rng = np.random.default_rng(0)
  step = rng.integers(0, COUNT, number).astype(np.int32)
  step[:2] = 0, COUNT - 1  # No ancestors; no descendants.
  noise = rng.random((number, *seen.allowed.shape))
  placement = np.where(seen.allowed, noise, -1).argmax(-1).astype(np.int32)
  return {**seen.tensors(), "placement": placement, "step": step}


def placeto_network():
  """A network without zeros, which would hide where they belong."""
  network = PlacetoNetwork(PlacetoConfig(units=4, rounds=3))
  rng = np.random.default_rng(2)
  for weight in network.variables:
    if not weight.numpy().any():
      weight.assign(0.3 * rng.normal(size=weight.shape))
  return network


def mlp(layers, row):
  return layers(np.asarray(row, np.float32)[None]).numpy()[0]


def aggregate(layer, members, values):
  """g(mean of f), one member after another."""
  terms = [mlp(layer._f, values[n]) for n in members]
  size = layer._f.layers[-1].units
  return mlp(layer._g, sum(terms, np.zeros(size)) / max(len(terms), 1))


def placeto_logit(network, given, b, d):
  """Score of device d in state b as in the paper, group by group."""
  step, feeds, reached = given["step"][b], given["feeds"], given["ancestors"]
  first = [
    mlp(
      network._transform,
      [
        *given["node"][n, d],
        n < step,
        n == step,
        given["placement"][b, n] == d,
      ],
    )
    for n in range(COUNT)
  ]
  found = []
  for way, message in zip((feeds, feeds.T), network._messages, strict=True):
    state = first
    for _ in range(3):
      state = [
        first[n] + aggregate(message, np.flatnonzero(way[n]), state)
        if way[n].any()
        else first[n]
        for n in range(COUNT)
      ]
    found.append(state)
  rows = np.concatenate(found, axis=1)
  before = set(np.flatnonzero(reached[step]))
  after = set(np.flatnonzero(reached[:, step]))
  beside = set(range(COUNT)) - before - after - {step}
  pooled = [
    aggregate(pooling, members, rows)
    for members, pooling in zip(
      (before, after, beside), network._poolings, strict=True
    )
  ]
  row = np.concatenate([*pooled, rows[step], given["device"][d]])
  return mlp(network._classifier, row)[0] - 2.0 * given["slower"][step, d]


def test_placeto_equals_numpy():
  given, network = placeto_case(), placeto_network()
  found = network.logits(**given).numpy()
  for b, step in enumerate(given["step"]):
    for d in range(3):
      if given["allowed"][step, d]:
        expected = placeto_logit(network, given, b, d)
        assert found[b, d] == pytest.approx(expected, rel=1e-3, abs=1e-4)
      else:
        assert found[b, d] == NEVER

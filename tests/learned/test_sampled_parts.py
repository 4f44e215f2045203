"""Samples drawn in parts, and graphs sent to workers, change no number."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.learned import sampling
from tfplace.learned.decisions import group_decisions, sample
from tfplace.learned.gdp.sampling import gdp_draws
from tfplace.learned.ordered.placer import uniform_head
from tfplace.learned.ordered.sampling import OrderedDraws

SAMPLES = 7


def context_of():
  problem = problem_of(random_graph(30, seed=2, cpu_only=True), gpus(3, True))
  decisions = group_decisions(problem)
  groupings = tuple(decisions.coarse_groups(size) for size in (3, 9))
  return sampling.Context(decisions, Simulator(problem), groupings)


def requests(context):
  rng = np.random.default_rng(0)
  shape = context.decisions.allowed.shape
  open_devices = np.where(context.decisions.allowed, 0.0, -1e9)
  logits = (open_devices + rng.normal(size=shape)).astype(np.float32)
  best = context.decisions.allowed.argmax(axis=1)
  noise = rng.gumbel(size=(SAMPLES, *shape)).astype(np.float32)
  forced = np.full((SAMPLES, shape[0]), -1, np.int32)
  forced[-1] = best
  draws = gdp_draws(logits, SAMPLES - 1, rng, context.groupings, best)
  return {
    "gdp": draws,
    "ordered": OrderedDraws(uniform_head(shape[0]), noise, forced),
    "given": sampling.Given(draws.run(context).choices),
  }


def assert_same(found, expected):
  assert type(found) is type(expected)
  for a, b in zip(found, expected, strict=True):
    assert len(a) == SAMPLES
    np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("kind", ["gdp", "ordered", "given"])
def test_parts_of_draws_equal_the_whole_in_a_copy_of_the_graph(kind):
  context = context_of()
  draws = requests(context)[kind]
  expected = draws.run(context)
  copy = sampling.unpack(sampling.pack(context))
  parts = [draws.part(slice(*rows)) for rows in ((0, 1), (1, 4), (4, 7))]
  assert [len(part) for part in parts] == [1, 3, 3]
  assert_same(sampling.joined([part.run(copy) for part in parts]), expected)


def test_gdp_draws_the_samples_of_its_distribution():
  context = context_of()
  logits = requests(context)["gdp"].logits
  # Four kinds of device, none of which can be renamed.
  context.classes = np.arange(4, dtype=np.int32)
  expected = sample(logits, 5, np.random.default_rng(3), context.groupings)
  draws = gdp_draws(
    logits, 5, np.random.default_rng(3), context.groupings, None
  )
  choices = draws.run(context).choices
  np.testing.assert_array_equal(choices[0], logits.argmax(axis=1))
  np.testing.assert_array_equal(choices[1:], expected)


def test_a_worker_asks_for_an_unknown_graph_and_then_keeps_it(monkeypatch):
  monkeypatch.setattr(sampling, "_contexts", sampling._contexts.copy())
  monkeypatch.setattr(sampling, "_KEPT", 2)
  sampling._contexts.clear()
  context = context_of()
  content, draws = sampling.pack(context), requests(context)["given"]
  assert sampling.run_part(draws, "a", None) is None
  assert_same(sampling.run_part(draws, "a", content), draws.run(context))
  assert sampling.run_part(draws, "a", None) is not None
  sampling.run_part(draws, "b", content)
  sampling.run_part(draws, "a", None)
  sampling.run_part(draws, "c", content)  # "b" has waited longest.
  assert list(sampling._contexts) == ["a", "c"]

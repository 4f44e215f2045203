"""Tolerance of `auto`: step time within cost noise traded for less traffic."""

import dataclasses

import pytest

from benchmarks.random_steps import training_step
from tfplace.cost.measured_costs import STEP_NOISE
from tfplace.graph import OpSpec, Problem, build_graph
from tfplace.hardware.presets import cluster_preset
from tfplace.plan.config import PlanConfig
from tfplace.plan.search import search


def chain(noise):
  ops = [OpSpec(name, "X", {"GPU": 1.0}, [4.0]) for name in "ab"]
  graph = build_graph("chain", ops, [(0, 0, 1)])
  if noise is not None:
    graph = dataclasses.replace(graph, extra={STEP_NOISE: noise})
  return Problem(graph, cluster_preset("v100x2"))


@pytest.mark.parametrize(
  ("noise", "asked", "tolerance"),
  [
    (None, None, 0.0),
    (0.004, None, 0.004),
    (0.5, None, 0.02),  # of a very noisy measurement 2% at most
    (0.004, 0.0, 0.0),
    (None, 0.005, 0.005),
  ],
)
def test_the_tolerance_is_what_is_asked_for_or_the_noise(
  noise, asked, tolerance
):
  config = PlanConfig(tolerance=asked)
  assert config.tolerance_of(chain(noise)) == tolerance


def test_measured_costs_give_up_what_they_are_unsure_by():
  graph = training_step(101)
  cluster = cluster_preset("p100x4")
  found = {}
  for noise in (0.0, 0.01):
    noisy = dataclasses.replace(graph, extra={STEP_NOISE: noise})
    config = PlanConfig(max_evaluations=2000, gap=0.0)
    found[noise] = search(Problem(noisy, cluster), config).results[0]
  exact, noisy = (found[noise].evaluation for noise in (0.0, 0.01))
  best_us = min(t.evaluation.step_time_us for t in found[0.01].tried)
  assert noisy.bytes_moved < exact.bytes_moved
  assert best_us < noisy.step_time_us <= 1.01 * best_us

"""Published steps and fitted kernels: rows, scaling, tables."""

import dataclasses

import numpy as np
import pytest

from benchmarks import run_plans, run_published_steps
from benchmarks.run_published_steps import Row
from tests.testing import problems

ONE = Row("resnet50", "train", "v100", 1, 32, "fp32", False, 100.0, "")


def saved(row, predicted_ms):
  interval = 0.8 * predicted_ms, 1.25 * predicted_ms
  fields = {
    "predicted_ms": predicted_ms,
    "interval_ms": interval,
    "commit": "c",
  }
  return {**dataclasses.asdict(row), **fields}


def test_scaling_is_relative_to_the_row_of_one_gpu():
  eight = dataclasses.replace(ONE, gpus=8, step_ms=125.0)
  alone = dataclasses.replace(ONE, gpus=4, batch=64, step_ms=200.0)
  rows = {r.label: saved(r, ms) for r, ms in ((ONE, 90.0), (eight, 99.0))}
  rows[alone.label] = saved(alone, 150.0)
  assert len(rows) == 3
  found = {r["row"].gpus: r for r in run_published_steps.compared(rows)}
  assert found[1]["ratio"] == pytest.approx(0.9)
  assert found[1]["over"] is None
  assert found[8]["ratio"] == pytest.approx(99 / 125)
  # Predicted 1.1 times, published 1.25 times the time of one GPU.
  assert found[8]["over"] == pytest.approx(1.1 / 1.25)
  assert found[4]["over"] is None  # no row of one GPU with its batch


def plan(grid, us, **known):
  stages = len(us[0])
  cluster = problems.cluster([np.inf] * 2, bandwidth=100.0, latency=3.0)
  fields = {
    "count": 1,
    "sent_bytes": [0.0] * (stages - 1),
    "gradient_bytes": [0.0] * stages,
    **known,
  }
  return run_plans.Plan(
    "p", "all", 1.0, cluster, np.array(grid), us=np.array(us), **fields
  )


def test_replicas_reduce_parts_of_gradients_in_a_ring():
  # A part of 1000 bytes goes from one device to the other in 13 us, and its sum
  # back in 13; the passes before take 30 us and the update 5.
  two = plan([[0], [1]], [[10.0], [20.0], [5.0]], gradient_bytes=[2000.0])
  assert run_plans.predicted_s(two) == pytest.approx((30 + 13 + 13 + 5) / 1e6)
  one = plan([[0]], [[10.0], [20.0], [5.0]], gradient_bytes=[2000.0])
  assert run_plans.predicted_s(one) == pytest.approx(35 / 1e6)


def test_all_but_the_last_microbatch_are_recomputed():
  # The second stage runs forward from 13 to 23, both passes of the first
  # microbatch to 53, then the second one to 63 and 83; its gradient is at the
  # first stage at 86. That one ends the first microbatch, from 56, at 86.
  us = [[10.0, 10.0], [20.0, 20.0], [0.0, 0.0]]
  both = plan([[0, 1]], us, count=2, recomputes=True, examples=2)
  assert run_plans.predicted_s(both) == pytest.approx(106 / 1e6 / 2)

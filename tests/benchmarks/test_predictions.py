"""Published steps and fitted kernels: rows, scaling, tables."""

import dataclasses

import numpy as np
import pytest

from benchmarks import fit_kernel_costs, run_published_steps
from benchmarks.run_published_steps import Row

ONE = Row("resnet50", "train", "v100", 1, 32, "fp32", False, 100.0, "")


def saved(row, predicted_ms):
  return {**dataclasses.asdict(row), "predicted_ms": predicted_ms}


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


def test_an_update_after_micro_steps_counts_with_its_share():
  one = dataclasses.replace(ONE, model="bert_large_pretraining_128", batch=64)
  two = dataclasses.replace(one, gpus=2, batch=64)
  assert two.steps_per_update == 512  # 65,536 sequences / 128
  rows = {r.label: saved(r, ms) for r, ms in ((one, 100.0), (two, 612.0))}
  found = run_published_steps.compared(rows)[1]
  # 100 + 512 / 512.
  assert found["ratio"] == pytest.approx(1.01)


def test_the_clock_of_kernels_is_inverted():
  clock = fit_kernel_costs.Clock(floor_us=30.0, event_us=5.0)
  times = np.array([20.0, 100.0, 5000.0])
  assert clock.measured(times)[0] > 30.0
  np.testing.assert_allclose(clock.kernel(clock.measured(times)), times)

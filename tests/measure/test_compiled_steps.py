"""Measured steps in units that XLA compiles."""

import numpy as np
import pytest

from tests.testing import placed_models as at
from tests.testing.clusters import linked
from tfplace import cost
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.measure.harness import MeasurementHarness
from tfplace.measure.local.devices import WorkerCluster
from tfplace.variants.keras_step import trace_keras


@pytest.fixture(scope="module")
def traced():
  return trace_keras(at.build("dense"), 6)


def measured(traced, workers, compile_units, **options):
  """Evaluation of layers by turns on two workers, and names of what ran."""
  cluster = linked(workers.device_names, 1e3)
  graph = cost.op_graph(traced, cluster, compile_units=compile_units)
  problem = Problem(graph, cluster)
  layer = np.maximum(problem.graph.layer, 0)
  first = np.unique(problem.group_of, return_index=True)[1]
  row = (layer[first] % 2)[problem.group_of].astype(np.int32)
  assert set(row) == {0, 1}
  harness = MeasurementHarness(
    problem, traced, workers, steps=2, warmup=1, traced_steps=1, **options
  )
  (evaluation,) = harness.evaluate([Placement(problem, row)])
  assert "error" not in evaluation.extra, evaluation.extra["error"]
  return evaluation, harness.traces[0].ops


def test_merged_units_of_workers_compute_the_losses(
  traced, workers: WorkerCluster
):
  plain, ops = measured(traced, workers, False)
  alone, units = measured(traced, workers, True, merges=False)
  merged, calls = measured(traced, workers, True)
  for key in ("fetches", "last_fetches"):
    for found in (alone, merged):
      assert found.extra[key] == pytest.approx(plain.extra[key], rel=1e-5)
  # In a profile each unit has its time; what runs in the end is merged.
  assert any(name.endswith("/unit") for name in units)
  assert not any(name.endswith("/unit") for name in calls)
  assert len(calls) < len(units) < len(ops)
  assert {op.device for op in calls.values()} == set(workers.device_names)

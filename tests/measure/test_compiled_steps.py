"""A Keras step on workers, op by op and in units that XLA compiles."""

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


def keras_losses(steps):
  model, losses = at.build("dense"), []
  for _ in range(steps):
    model.reset_metrics()  # else a running mean is returned
    losses.append(float(model.train_on_batch(*at.batch("dense"))[0]))
  return losses


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


def test_steps_and_merged_units_of_workers_have_the_losses_of_keras(
  workers: WorkerCluster,
):
  traced = trace_keras(at.build("dense"), sample=at.batch("dense"))
  plain, ops = measured(traced, workers, False)
  # Fetched are the first step, and the last after 1 + 2 + 1 others.
  losses, loss = keras_losses(6), traced.fetches[0]
  assert plain.extra["fetches"][loss] == pytest.approx(losses[0], rel=1e-5)
  assert plain.extra["last_fetches"][loss] == pytest.approx(losses[5], rel=1e-5)
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

"""A CTC loss, whose loops Grappler cannot estimate, is measured and costed."""

import numpy as np

import tfplace
from tests.testing import layer_cases

OPTIONS = {"strategy": "m_topo", "batch_size": 8, "budget_s": 0.2}


def test_a_measured_ctc_loss_trains_as_unplaced():
  losses = []
  for placed in (False, True):
    model, batch = layer_cases.build("ctc_loss")
    if placed:
      tfplace.place_model(model, costs="measured", **OPTIONS)
      assert len(model.placement.devices) > 1
    losses.append(model.fit(*batch, epochs=3, verbose=0).history["loss"])
  np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_loops_of_a_ctc_loss_have_costs():
  model, _ = layer_cases.build("ctc_loss")
  plan = tfplace.plan_model(model, "v100x2", microbatches=2, **OPTIONS)
  graph = plan.placement.problem.graph
  times = dict(zip(graph.names, graph.time_us["CPU"], strict=True))
  loops = [
    times[name]
    for name, kind in zip(graph.names, graph.types, strict=True)
    if "While" in kind and "ctc" in name
  ]
  assert loops
  assert min(loops) > 0
  assert "rejected_by_grappler" not in graph.extra

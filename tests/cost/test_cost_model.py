"""A cost model is one module and one line of the registry."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace import cost
from tfplace.cost import registry
from tfplace.errors import TfplaceError
from tfplace.extraction.traced import TracedStep
from tfplace.graph.protocols import OpCosts
from tfplace.hardware.presets import cluster_preset

CLUSTER = cluster_preset("k80x1")


class BytesOnly:
  """An op takes the time to write its outputs at so many bytes/us."""

  name = "bytes"

  def __init__(self, bytes_per_us=1.0):
    self.bytes_per_us = bytes_per_us

  def op_costs(self, step):
    times = step.graph.op_output_bytes / self.bytes_per_us
    return OpCosts(dict.fromkeys(step.hardware, times), extra={"toy": True})


@pytest.fixture(name="traced")
def _traced():
  with tf.Graph().as_default() as graph:
    matrix = tf.ones([8, 4], name="matrix")
    text = tf.strings.as_string(matrix, name="text")  # no kernel on GPUs
  names = (text.name,)
  return TracedStep("g", graph.as_graph_def(), {}, names, (), {}, False)


@pytest.fixture(name="registered")
def _registered(monkeypatch):
  line = {"bytes": f"{__name__}:BytesOnly"}
  models = {**registry.COST_MODELS, **line}
  monkeypatch.setattr(registry, "COST_MODELS", models)


@pytest.mark.usefixtures("registered")
def test_a_new_cost_model_needs_one_class_and_one_line(traced):
  graph = cost.op_graph(traced, CLUSTER, cost_model="bytes")
  # 8 * 4 floats of 4 bytes, and as many strings of 24, at 1 byte/us.
  matrix, text = graph.index["matrix"], graph.index["text"]
  assert graph.time_us["GPU"][matrix] == graph.time_us["CPU"][matrix] == 128
  assert graph.time_us["CPU"][text] == 768
  assert np.isnan(graph.time_us["GPU"][text])
  assert graph.extra == {"costs": "bytes", "training": False, "toy": True}


@pytest.mark.usefixtures("registered")
def test_options_reach_the_model_and_an_instance_may_be_given(traced):
  model = cost.get_cost_model("bytes", bytes_per_us=2.0)
  graph = cost.op_graph(traced, CLUSTER, cost_model=model)
  assert graph.time_us["CPU"][graph.index["matrix"]] == 64


def test_an_unknown_cost_model_is_refused_with_the_choices(traced):
  with pytest.raises(
    TfplaceError, match="'guess'; choose one of grappler, kernels"
  ):
    cost.op_graph(traced, CLUSTER, cost_model="guess")

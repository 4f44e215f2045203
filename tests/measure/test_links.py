"""A link's figures, from transfers whose times are made up."""

import pytest
from tensorflow.core.framework import graph_pb2

from tfplace.measure import links, messages

LATENCY_US, RATE, GAP_US, OP_US = 200.0, 1000.0, 20.0, 3.0


class MadeUpWorkers:
  """Times a step by its graph: transfers in sequence, bursts by their gap."""

  def run(self, request, timeout_s):
    graph = graph_pb2.GraphDef.FromString(request.graph_def)
    nodes = {node.name: node for node in graph.node}
    chained = any(n.op == "Identity" and len(n.input) > 1 for n in graph.node)
    took = OP_US * len(nodes)
    crossings = []
    for node in graph.node:
      for source in node.input:
        producer = nodes[source.lstrip("^")]
        if producer.device != node.device:
          crossings.append(self._bytes(producer, nodes))
    if chained:
      took += sum(LATENCY_US + size / RATE for size in crossings)
    elif crossings:
      took += LATENCY_US + (len(crossings) - 1) * GAP_US
    return messages.StepReply([took], {}, {}, [], 0.0)

  def _bytes(self, node, nodes):
    while node.op == "Identity":
      node = nodes[node.input[0]]
    if node.op == "Rank":
      return 4
    shape = node.attr["value"].tensor.tensor_shape.dim
    return 4 * (shape[0].size if shape else 1)


def test_links_have_the_latency_rate_and_gap_of_their_transfers():
  a, b = "/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"
  found = links.measure_links(MadeUpWorkers(), (a, b))
  assert [(link.src, link.dst) for link in found] == [(a, b), (b, a)]
  for link in found:
    assert link.latency_us == pytest.approx(LATENCY_US, rel=1e-3)
    assert link.bandwidth_bytes_per_us == pytest.approx(RATE, rel=1e-3)
    assert link.gap_us == pytest.approx(GAP_US, rel=1e-6)
    assert link.channel is None

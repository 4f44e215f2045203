"""A link's figures, from transfers whose times are made up."""

import pytest
from tensorflow.core.framework import graph_pb2

from tfplace.measure.calibrate import links
from tfplace.measure.session import messages

LATENCY_US, RATE, GAP_US, OP_US = 200.0, 1000.0, 20.0, 3.0
A, B, C = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(3))


class MadeUpWorkers:
  """Times a step by its graph: trips by latency, bursts by what they send."""

  def __init__(self, rate=RATE, gap_us=GAP_US, lost=()):
    """`lost`: bytes of the tensors whose transfers cannot be told."""
    self.rate, self.gap_us, self.lost = rate, gap_us, lost
    self.pairs = set()

  def run(self, request, timeout_s):
    graph = graph_pb2.GraphDef.FromString(request.graph_def)
    nodes = {node.name: node for node in graph.node}
    took = OP_US * len(nodes)
    is_burst = any(node.op == "MatMul" for node in graph.node)
    if is_burst:  # the last tensor is on its way when all else is done
      took += LATENCY_US
    for node in graph.node:
      for source in node.input:
        producer = nodes[source.lstrip("^")]
        if producer.device == node.device:
          continue
        self.pairs.add((producer.device, node.device))
        if not is_burst:
          took += LATENCY_US
        elif not source.startswith("^"):
          size = self._bytes(producer, nodes)
          if size not in self.lost:
            took += self.gap_us + size / self.rate
    return messages.StepReply([took], {}, {}, [], 0.0)

  def _bytes(self, node, nodes):
    while node.op == "Identity":
      node = nodes[node.input[0]]
    return 4 * node.attr["value"].tensor.tensor_shape.dim[0].size


def check_figures(link):
  assert link.latency_us == pytest.approx(LATENCY_US, rel=1e-6)
  assert link.bandwidth_bytes_per_us == pytest.approx(RATE, rel=1e-3)
  assert link.gap_us == pytest.approx(GAP_US, rel=1e-3)


def test_duplex_links_have_the_figures_of_their_transfers():
  found = links.duplex_links(MadeUpWorkers(), (A, B))
  assert [(link.src, link.dst) for link in found] == [(A, B), (B, A)]
  for link in found:
    check_figures(link)
    assert link.channel is None


def test_loopback_pairs_share_a_channel_and_one_pair_stands_for_all():
  workers = MadeUpWorkers()
  found = links.loopback_links(workers, (A, B, C))
  assert workers.pairs == {(A, B), (B, A)}
  assert {(link.src, link.dst): link.channel for link in found} == {
    (A, B): "loopback:0-1",
    (B, A): "loopback:0-1",
    (A, C): "loopback:0-2",
    (C, A): "loopback:0-2",
    (B, C): "loopback:1-2",
    (C, B): "loopback:1-2",
  }
  for link in found:
    check_figures(link)


def test_one_device_has_no_links():
  assert links.loopback_links(MadeUpWorkers(), (A,)) == ()


def test_transfers_that_copy_nothing_have_a_very_high_bandwidth():
  (link, _) = links.duplex_links(MadeUpWorkers(rate=1e30), (A, B))
  assert link.bandwidth_bytes_per_us >= 1e6
  assert link.gap_us == pytest.approx(GAP_US, rel=1e-3)


def test_slow_links_are_spared_the_large_tensors():
  # At 1 byte/us the 16 such transfers of 128 KiB would take 2.1 s, and 7 of
  # them 0.9 s; two of 1 MiB would take 2.1 s.
  workers = MadeUpWorkers(rate=1.0)
  (link, _) = links.duplex_links(workers, (A, B))
  assert set(link.extra["occupied_us"]) == {"4", str(16 << 10), str(128 << 10)}
  assert link.bandwidth_bytes_per_us == pytest.approx(1.0, rel=1e-3)
  assert link.gap_us == pytest.approx(GAP_US, rel=1e-2)


def test_slow_messages_do_not_hide_the_rate():
  # 10 ms a message, whatever its size: 16 KiB took as long as 4 bytes.
  workers = MadeUpWorkers(gap_us=10_000.0)
  (link, _) = links.duplex_links(workers, (A, B))
  assert str(1 << 20) in link.extra["occupied_us"]
  assert link.bandwidth_bytes_per_us == pytest.approx(RATE, rel=1e-2)
  assert link.gap_us == pytest.approx(10_000.0, rel=1e-3)


@pytest.mark.parametrize("lost", [(4,), (4, 16 << 10)])
def test_transfers_that_are_lost_in_noise_leave_the_figures_of_the_others(lost):
  (link, _) = links.duplex_links(MadeUpWorkers(lost=lost), (A, B))
  check_figures(link)


def test_what_only_the_largest_transfers_tell_is_their_rate():
  workers = MadeUpWorkers(lost=(4, 16 << 10, 128 << 10))
  (link, _) = links.duplex_links(workers, (A, B))
  took_us = GAP_US + (1 << 20) / RATE
  assert link.bandwidth_bytes_per_us == pytest.approx((1 << 20) / took_us)
  assert link.gap_us == 0.0

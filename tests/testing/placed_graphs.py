"""Small placed graphs whose steps are known by hand."""

import numpy as np

from tests.testing.clusters import linked
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem


def chain():
  """a on d0: 0-2. Its 6 bytes are sent 2-5 and arrive at 5.5. b on d1:
  5.5-6.5. z on d0 at 2 takes no time and must be where a is."""
  ops = [
    OpSpec("m/first/a", "MatMul", {"GPU": 2.0}, [6.0], colocation="pair"),
    OpSpec("m/second/b", "Relu", {"GPU": 1.0}, persistent_bytes=9.0),
    OpSpec("m/first/z", "NoOp", {"GPU": 0.0}, colocation="pair"),
  ]
  devices = (Device("/gpu:0", "GPU", 12.0), Device("/gpu:1", "GPU"))
  cluster = Cluster("two", devices, (Link("/gpu:0", "/gpu:1", 2.0, 0.5),))
  graph = build_graph("chain", ops, [(0, 0, 1), (0, -1, 2)])
  return Placement(Problem(graph, cluster), np.array([0, 1, 0]))


def queue():
  """x: 0-2, then the device is idle until 2.5; y: 2.5-5.5."""
  ops = [OpSpec("x", "X", {"GPU": 2.0}), OpSpec("y", "Y", {"GPU": 3.0})]
  cluster = Cluster("one", (Device("/gpu:0", "GPU", 9.0, 0.5),))
  problem = Problem(build_graph("queue", ops, []), cluster)
  return Placement(problem, np.array([0, 0]))


def chains(count, length, overhead_us):
  """Chains of ops of 3 us on one device, which takes them in turns."""
  ops = [
    OpSpec(f"{chain}/{i}", "X", {"GPU": 3.0})
    for i in range(length)
    for chain in "abc"[:count]
  ]
  edges = [(i, -1, i + count) for i in range(len(ops) - count)]
  cluster = Cluster("one", (Device("/gpu:0", "GPU", 9.0, overhead_us),))
  problem = Problem(build_graph("chains", ops, edges), cluster)
  return Placement(problem, np.zeros(len(ops), int))


def busy_link():
  """a on d0: 0-1. Its first output is sent 1-3, and the channel is free at 4;
  its second is sent 4-6 and arrives at 6. b on d1: 6-7."""
  ops = [
    OpSpec("a", "A", {"GPU": 1.0}, [4.0, 4.0]),
    OpSpec("b", "B", {"GPU": 1.0}),
  ]
  devices = (Device("/gpu:0", "GPU"), Device("/gpu:1", "GPU"))
  links = (Link("/gpu:0", "/gpu:1", 2.0, gap_us=1.0),)
  graph = build_graph("busy", ops, [(0, 0, 1), (0, 1, 1)])
  problem = Problem(graph, Cluster("two", devices, links))
  return Placement(problem, np.array([0, 1]))


def messages():
  """A link that takes time of its devices: 1 to send, 2 to receive.

  a on d0: 0-2, then sends until 3. Its 6 bytes are on their way 3-6 and arrive
  at 6.5. d1 receives them 6.5-8.5; b on d1: 8.5-9.5.
  """
  ops = [
    OpSpec("m/first/a", "MatMul", {"GPU": 2.0}, [6.0]),
    OpSpec("m/second/b", "Relu", {"GPU": 1.0}),
  ]
  devices = (Device("/gpu:0", "GPU"), Device("/gpu:1", "GPU"))
  link = Link("/gpu:0", "/gpu:1", 2.0, 0.5, send_us=1.0, recv_us=2.0)
  problem = Problem(
    build_graph("messages", ops, [(0, 0, 1)]), Cluster("two", devices, (link,))
  )
  return Placement(problem, np.array([0, 1]))


def split_step(
  forward_us,
  microbatches,
  device_of,
  update_us=0.0,
  read_bytes=0.0,
  overhead_us=0.0,
):
  """A step in microbatches, of as many devices as it uses: g0, g1, ...

  Each layer has a variable, read once; a forward and a backward op of the same
  time for each microbatch, in the order of microbatches; gradients are added,
  and the variable updated, where it is. Links carry 2 bytes a microsecond.

  Args:
    forward_us: microseconds of each layer.
    microbatches: how many.
    device_of: device of a microbatch's layer; None and a layer for variables.
    update_us: of each update.
    read_bytes: of each variable.
    overhead_us: of the devices, after an op.
  """
  ops, edges, at = [], [], []
  last = len(forward_us) - 1

  def add(name, type, us, size, microbatch, layer, *inputs):
    own = None if microbatch is None else f"microbatch_{microbatch}/"
    ops.append(
      OpSpec(
        f"{own or ''}{name}",
        type,
        {"GPU": us},
        [size],
        layer=f"net/layer_{layer}",
        microbatch=microbatch,
      )
    )
    at.append(device_of(microbatch, layer))
    edges.extend((source, 0, len(ops) - 1) for source in inputs)
    return len(ops) - 1

  reads = [
    add(f"net/layer_{i}/read", "Read", 0.0, read_bytes, None, i)
    for i in range(last + 1)
  ]
  gradients = [[] for _ in forward_us]
  for m in range(microbatches):
    before = []
    for i, us in enumerate(forward_us):
      name = f"net/layer_{i}/MatMul"
      before = [add(name, "MatMul", us, 0.0, m, i, reads[i], *before)]
    for i in range(last, -1, -1):
      name = f"gradient_tape/net/layer_{i}/MatMul"
      before = [add(name, "MatMul", forward_us[i], 0.0, m, i, *before)]
      gradients[i] += before
  for i in range(last + 1):
    name = f"accumulate/net/layer_{i}/AddN"
    total = add(name, "AddN", 0.0, 0.0, None, i, *gradients[i])
    add(f"sgd/update_{i}", "Assign", update_us, 0.0, None, i, total)
  devices = [
    Device(f"g{i}", "GPU", 1e9, overhead_us) for i in range(max(at) + 1)
  ]
  problem = Problem(build_graph("split", ops, edges), linked(devices, 2.0))
  return Placement(problem, np.array(at))

"""Steps small enough to simulate by hand, and the simulator's word on them."""

import math

import numpy as np

from tests.testing.clusters import linked
from tfplace.graph.cluster import Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator


def op(name, time_us, outputs=(), temp=0.0, persistent=0.0):
  return OpSpec(name, "Op", {"GPU": time_us}, outputs, persistent, temp)


def cluster_of(num_devices, overhead=0.0, memory=math.inf, **link):
  """Fully linked devices; 1 byte/us unless said otherwise."""
  link = {"bandwidth": 1.0, **link}
  names = [f"d{i}" for i in range(num_devices)]
  return linked([Device(n, "GPU", memory, overhead) for n in names], **link)


def simulate(ops, edges, devices, cluster):
  """Simulates edges given as (producer name, output, consumer name)."""
  index = {o.name: i for i, o in enumerate(ops)}
  graph = build_graph("g", ops, [(index[a], k, index[b]) for a, k, b in edges])
  simulator = Simulator(Problem(graph, cluster))
  return simulator.schedule(np.array(devices, np.int32))


def starts(schedule):
  names = schedule.placement.problem.graph.names
  return dict(zip(names, schedule.op_start_us.tolist(), strict=True))

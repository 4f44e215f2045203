"""Places a graph with costs of your own; TensorFlow is not loaded.

The graph is written here: eight chains of matrix products. Yours may come from
any profiler, in the same format (`tfplace.formats`).
"""

import pathlib
import tempfile

import budget
import numpy as np

import tfplace

ops, edges = [], []
for chain in range(8):
  for number in range(20):
    time_us = {"GPU": 200.0 + 10 * chain, "CPU": 8000.0}
    name = f"chain_{chain}/product_{number}"
    ops.append(tfplace.OpSpec(name, "MatMul", time_us, [2e6]))
    if number:
      edges.append((len(ops) - 2, 0, len(ops) - 1))

with tempfile.TemporaryDirectory() as folder:
  path = pathlib.Path(folder, "graph.json")
  tfplace.save_graph(tfplace.build_graph("chains", ops, edges), path)
  graph = tfplace.load_graph(path)

problem = tfplace.Problem(graph, tfplace.cluster_preset("p100x4"))
budget_s = budget.seconds()
for strategy in ("single", "blocks", "metis", "heft", "m_etf", "auto"):
  result = tfplace.place(problem, strategy=strategy, budget_s=budget_s)
  milliseconds = result.evaluation.step_time_us / 1e3
  print(f"{strategy:8} {milliseconds:7.2f} ms")

# Any placement can be judged: here, every chain on a GPU of its own.
gpus = [i for i, d in enumerate(problem.cluster.devices) if d.kind == "GPU"]
by_chain = [gpus[op // 20 % len(gpus)] for op in range(graph.num_ops)]
(evaluation,) = tfplace.Simulator(problem).evaluate(np.array([by_chain]))
print(f"by hand  {evaluation.step_time_us / 1e3:7.2f} ms")

"""Warming up compiles all that a strategy runs, and nothing is left."""

import json
import os
import subprocess
import sys

import pytest

from tests.testing.slow import slow

# In a process of its own: other tests call kernels with other types.
_SIGNATURES = """
import dataclasses, json, sys
import numpy as np
from tests.testing import problems
from tfplace.graph import Problem
from tfplace.graph.budget import Budget
from tfplace import placers
from tfplace.placers.search.annealing import AnnealingPlacer
from tfplace.simulate import Simulator

def signatures():
  return {
    f"{name.split('.')[-1]}.{kernel.py_func.__name__}": len(kernel.signatures)
    for name in sorted(sys.modules)
    if name.startswith(
      ("tfplace.placers.", "tfplace.simulate.", "tfplace.learned.")
    )
    for kernel in vars(sys.modules[name]).values()
    if hasattr(kernel, "signatures")
    and not kernel.targetoptions["no_cpython_wrapper"]
    and kernel.py_func.__module__ == name
  }
"""
_COUNTING = """
message_costs = sys.argv[1] == "costly"
problem = problems.random_problem(0)
if message_costs:
  costly = [
    dataclasses.replace(link, recv_us=0.5) for link in problem.cluster.links
  ]
  cluster = dataclasses.replace(problem.cluster, links=tuple(costly))
  problem = Problem(problem.graph, cluster)
assert problem.cluster.has_message_costs == message_costs
placers.warm_up("auto", message_costs)
before = signatures()
placers.place(problem, "auto", budget_s=5, max_evaluations=200)
after = signatures()
half, count = np.float32(0.5), np.int32(200)
numbers = {"budget_s": half, "seed": np.int16(3), "gap": half}
numbers["tolerance"] = np.float16(0.1)
for strategy in ("annealing", "auto"):
  placers.place(problem, strategy, max_evaluations=count, **numbers)
  placers.place(problem, strategy, **numbers)
warm = AnnealingPlacer()
simulator = Simulator(problem)
warm.place(problem, simulator, Budget(np.float32(9), count), np.int8(1))
simulator.run(np.zeros((2, problem.graph.num_ops), np.int64), np.float32(9))
print(json.dumps([before, after, signatures()]))
"""
_ORDERED = """
placers.warm_up("ordered")
before = signatures()
placers.place(problems.random_problem(0), "ordered", max_evaluations=200)
print(json.dumps([before, signatures()]))
"""
_LARGE = """
from tfplace.graph import OpSpec, build_graph
ops = [OpSpec(f"op_{i}", "X", {"GPU": 1.0 + i % 7}, [1e3]) for i in range(1100)]
graph = build_graph("large", ops, [(i, 0, i + 9) for i in range(1091)])
placers.warm_up("annealing")
before = signatures()
problem = Problem(graph, problems.cluster([1e9] * 3))
placers.place(problem, "annealing", max_evaluations=3000)
print(json.dumps([before, signatures()]))
"""


def _printed(script, *arguments):
  done = subprocess.run(
    [sys.executable, "-c", _SIGNATURES + script, *arguments],
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("links", [slow("free"), "costly"])
def test_nothing_is_left_to_compile_after_warming_up(links):
  """Counts how often each kernel that Python calls is compiled or loaded."""
  before, after, by_numpy = _printed(_COUNTING, links)
  wanted = ("chain._move", "earliest_start._earliest_start", "merge._merge")
  for kernel in (*wanted, "engine.simulate_rows"):
    assert before[kernel] == 1  # for one type of each argument
  assert max(before.values()) == 1
  assert after == before
  assert by_numpy == before  # NumPy's scalars become Python's numbers.


@pytest.mark.parametrize(
  ("script", "wanted"),
  [(_ORDERED, "decoding._decode"), (_LARGE, "chain._move")],
  ids=["ordered", "large"],
)
def test_a_search_compiles_all_of_it_while_warming_up(script, wanted):
  before, after = _printed(script)
  assert before[wanted] == 1
  assert after == before

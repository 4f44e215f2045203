"""A step whose transfers are of every size, for the tests of fitted links."""

from tfplace.core.op_graph import OpGraph, OpSpec, build_graph

DEPTH, WIDTH = 30, 4


def four_chains() -> OpGraph:
  """Four chains of 30 ops of 50 us; each sends tensors of one size.

  Op `WIDTH * step + chain` is the chain's op of that step.
  """
  sizes = (4.0, 10e3, 100.0, 1000.0)
  ops = [
    OpSpec(f"{chain}_{step}", "Relu", {"CPU": 50.0}, [sizes[chain]])
    for step in range(DEPTH)
    for chain in range(WIDTH)
  ]
  edges = [(i, 0, i + WIDTH) for i in range(WIDTH * (DEPTH - 1))]
  return build_graph("g", ops, edges)

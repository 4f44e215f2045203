"""A graph that uses every field of the packed format."""

from tfplace.graph import OpSpec, build_graph


def odd_graph():
  """Every field used: groups, two kinds, gaps in times, unknown keys."""
  ops = [
    OpSpec(
      "a/ä",
      "MatMul",
      {"GPU": 1.5, "CPU": 7},
      [8, 16.0],
      4,
      2,
      "g",
      peak_us={"GPU": 1.25},
    ),
    OpSpec(
      *("b", "While", {"CPU": 0.1}, [], 0, 0, "g", "m/b"),
      extra={"note": [1, None]},
    ),
    OpSpec("c", "MatMul", {"GPU": 3.0}, [0], layer="m/b", microbatch=1),
  ]
  return build_graph(
    "odd",
    ops,
    [(0, 1, 1), (0, -1, 2), (0, 0, 2)],
    extra={"costs": "grappler", "unknown_shapes": ["c"]},
    edge_extra={2: {"why": "kept"}},
  )

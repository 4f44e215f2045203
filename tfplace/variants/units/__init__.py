"""Units: ops of one layer, pass and microbatch that XLA compiles together.

A unit is convex: no path leaves it and comes back, so it is one op of the graph
to place. Variables, other stateful ops, loops and what XLA lacks stay outside.
"""

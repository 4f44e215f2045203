"""Recomputation of activations.

`recompute.applied` makes the backward pass of a traced training step compute
segments (`segments`) again. The configuration and the names of the new ops are
in `graph.recompute`.
"""

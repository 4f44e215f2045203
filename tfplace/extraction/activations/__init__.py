"""Recomputation of activations.

`recompute` makes the backward pass compute segments (`segments`) again;
`rewrite` applies it to a traced training step. The configuration and the names
of the new ops are in `core.recompute`.
"""

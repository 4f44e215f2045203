"""Recomputation and host storage of activations.

`recompute` makes the backward pass compute segments (`segments`) again, and
`offload` lets activations wait on other devices; `rewrite` applies both to a
traced training step. The configurations and the names of the new ops are in
`core.recompute` and `core.offload`.
"""

"""Recomputation of activations in a traced training step.

`segments` chooses the forward ops that are cloned together, and `rewrite` makes
the clones. The configuration and the names of the clones are in
`core.recompute`.
"""

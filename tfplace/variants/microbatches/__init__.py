"""Microbatched training steps that compute the same result as the whole step.

`microbatched_step` builds the step. Its configuration and the names of its ops
are in `graph.microbatches`.
"""

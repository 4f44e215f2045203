"""Sequence networks of the literature, trained by REINFORCE."""

"""Placement algorithms, the registry of strategies, and `auto`."""

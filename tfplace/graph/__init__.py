"""Graphs, clusters, placements and their file formats."""

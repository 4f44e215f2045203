"""Placers by graph partitioning: METIS and Scotch."""

"""Graph-partitioning placers: METIS and Scotch."""

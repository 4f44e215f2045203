"""Search placers: simulated annealing with the exact simulator, and BRKGA."""

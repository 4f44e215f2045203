"""Models and graphs that benchmarks place."""

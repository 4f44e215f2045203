"""Benchmarks: each `run_*.py` measures, and `run_all.py` writes the tables."""

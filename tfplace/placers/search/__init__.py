"""Local search by the exact simulator, and BRKGA."""

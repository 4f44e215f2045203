"""Optimal placement of small problems by constraint programming."""

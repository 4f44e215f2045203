"""The optimum of small problems, by constraint programming."""

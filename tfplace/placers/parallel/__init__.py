"""Searches and evaluations on several processes or machines."""

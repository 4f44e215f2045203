"""Costs of GPUs, and runs on a host's GPUs."""

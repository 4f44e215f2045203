"""Presets of GPUs and hosts, with their sources."""

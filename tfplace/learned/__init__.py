"""Learned placers, a folder per method, and their training."""

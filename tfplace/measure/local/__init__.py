"""Devices of this host: worker processes, GPUs and logical devices."""

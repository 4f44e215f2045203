"""This host's devices: worker processes, GPUs, logical devices."""

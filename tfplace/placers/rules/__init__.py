"""Placers by rule: one device, blocks, an expert's rules, axes."""

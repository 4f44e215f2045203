"""Placeto: groups visited in order, each placed anew."""

"""Saved rows, published tables, flags and screenshots."""

"""Flags, saved rows, reports, published tables and screenshots."""

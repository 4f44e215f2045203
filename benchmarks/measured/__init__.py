"""Predicted beside measured steps."""

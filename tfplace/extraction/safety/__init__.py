"""Checks of untrusted files before TensorFlow reads them."""

"""Untrusted files: what is checked before TensorFlow reads them."""

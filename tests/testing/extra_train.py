"""Marker of tests that need the extra `train`."""

import importlib.util

import pytest

needs_extra_train = pytest.mark.skipif(
  any(
    importlib.util.find_spec(name) is None
    for name in ("tf_agents", "tensorflow_gnn", "tf_keras")
  ),
  reason="needs the extra 'train'",
)

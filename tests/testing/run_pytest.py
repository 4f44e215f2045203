"""Runs pytest on the files of a py_test target of Bazel."""

import os
import sys

import pytest

if __name__ == "__main__":
  # The package is read-only in Bazel's sandbox: without a folder for compiled
  # code, every process would compile anew.
  os.environ.setdefault("NUMBA_CACHE_DIR", os.environ["TEST_TMPDIR"])
  sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))

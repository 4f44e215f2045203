"""The Python rules that are built into Bazel before version 8."""

py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test

"""The benchmarks are programs, not a package: their folder on the path."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

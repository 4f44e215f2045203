"""Explanations are tested on the simulator's random problems, too."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "simulate")]

"""The one flag of the examples."""

import argparse


def seconds(default: float = 20.0) -> float:
  """`--budget_s`: seconds that the search may take."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--budget_s", type=float, default=default)
  return parser.parse_args().budget_s

"""Placements that the training of a policy found."""

import pathlib

import numpy as np

from tfplace.core.problem import Problem
from tfplace.formats.results import load_assignments
from tfplace.placers.replan import carried_over

FOLDER = "placements"  # In the directory of an exported policy.
_LEAST_KNOWN = 0.5  # Share of the ops that a placement must name.
# Policies of more graphs are general ones, and reading their placements would
# take longer than a search.
_MOST_FILES = 16


def starts(policy: str, problem: Problem) -> np.ndarray:
  """Returns starts for the graphs of a policy's training and their variants.

  Args:
    policy: Directory of the policy.

  Returns:
    [num_starts, num_ops] int32 devices, see `replan.carried_over`; none for a
    graph of which no placement names at least half of the ops, and for a policy
    with more than 16 placements.

  Raises:
    FormatError: A file is no placement.
    OSError: A file cannot be read.
  """
  names, count = problem.graph.names, max(1, problem.graph.num_ops)
  found = [np.zeros((0, problem.graph.num_ops), np.int32)]
  paths = sorted((pathlib.Path(policy) / FOLDER).glob("*.json"))
  for path in paths if len(paths) <= _MOST_FILES else ():
    assignments = load_assignments(path)
    known = sum(name in assignments for name in names)
    if known >= _LEAST_KNOWN * count:
      found.append(carried_over(problem, assignments))
  return np.concatenate(found)

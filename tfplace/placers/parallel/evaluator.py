"""Evaluation on a `concurrent.futures.Executor`."""

import concurrent.futures
from collections.abc import Sequence

import numpy as np

from tfplace.core.evaluation import Evaluation
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator


class ExecutorEvaluator:
  """Evaluates each batch in parts on an executor.

  The executor may be a process pool or that of a cluster engine. The evaluator
  is sent with each part, so it must be picklable for worker processes. A
  `Simulator` is picklable, but is packed again in each worker, which pays off
  from a few hundred placements.

  Args:
    executor: runs the parts; the caller shuts it down.
    num_parts: tasks per batch, such as the number of workers.
  """

  def __init__(
    self,
    evaluator: Evaluator,
    executor: concurrent.futures.Executor,
    num_parts: int,
  ) -> None:
    self.problem: Problem = evaluator.problem
    self._evaluator = evaluator
    self._executor = executor
    self._num_parts = num_parts

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices or `Placement`s, in order."""
    if isinstance(placements, np.ndarray):
      rows = placements
    else:
      rows = np.array([p.devices for p in placements], np.int32)
      rows = rows.reshape(len(placements), self.problem.graph.num_ops)
    parts = np.array_split(rows, max(1, min(self._num_parts, len(rows))))
    futures = [
      self._executor.submit(_evaluate, self._evaluator, part) for part in parts
    ]
    return [evaluation for f in futures for evaluation in f.result()]


def _evaluate(evaluator: Evaluator, rows: np.ndarray) -> list[Evaluation]:
  return evaluator.evaluate(rows)

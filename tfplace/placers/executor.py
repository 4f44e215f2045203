"""Any evaluator, spread over any `concurrent.futures.Executor`: a process
pool of this machine, or the executor of a cluster engine.
"""

import concurrent.futures
from collections.abc import Sequence

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation, Evaluator


class ExecutorEvaluator:
  """Evaluates batches in parts, each a task of an executor.

  The evaluator travels with each part, so it must be picklable where the
  executor's workers are processes; a `Simulator` is, and is laid out anew
  there, which pays from a few hundred placements on.

  Attributes:
    problem: what is placed and on what.
  """

  def __init__(
    self,
    evaluator: Evaluator,
    executor: concurrent.futures.Executor,
    num_parts: int,
  ) -> None:
    """Binds an evaluator to an executor.

    Args:
      evaluator: evaluates one part.
      executor: runs the parts; the caller shuts it down.
      num_parts: tasks per batch, say the number of workers.
    """
    self.problem: Problem = evaluator.problem
    self._evaluator = evaluator
    self._executor = executor
    self._num_parts = num_parts

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices, or `Placement`s, in order.

    Raises:
      TfplaceError: whatever the evaluator raises for a part.
    """
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

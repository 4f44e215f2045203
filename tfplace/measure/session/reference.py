"""Whose fault a NaN is: the model's, or the placement's.

A model may well yield NaNs on made-up inputs wherever its ops run; that says
nothing of a placement. What is finite with every op on one device and is not
under a placement is the placement's.
"""

from collections.abc import Callable

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.measure import evaluations
from tfplace.measure.calibrate import splits
from tfplace.measure.local import processes
from tfplace.measure.session import messages


class Reference:
  """The step on one device, run when it is first needed, and once only.

  Args:
    run: runs a placement.
    problem: whose groups each run on the first device that they may be on.
  """

  def __init__(
    self,
    run: Callable[[Placement], messages.StepReply],
    problem: Problem,
  ) -> None:
    self._run = run
    self._problem = problem
    self._broken: frozenset[str] | None = None
    self._why_unknown = ""

  def check(self, placement: Placement, reply: messages.StepReply) -> None:
    """Passes where every number is as finite as on one device.

    Raises:
      ChildError: of the kind "non_finite"; names what is not.
    """
    broken = evaluations.non_finite(reply)
    if not broken:
      return
    home = home_placement(self._problem)
    if (placement.devices == home.devices).all():
      self._broken = frozenset(broken)
    elif self._broken is None:
      self._find(home)
    new = [name for name in broken if name not in (self._broken or ())]
    if new:
      raise processes.ChildError(
        "non_finite",
        f"measuring: {', '.join(map(repr, new))} has a NaN or an infinity,"
        f" {self._why_unknown or 'and none with every op on one device'}",
      )

  def _find(self, home: Placement) -> None:
    try:
      self._broken = frozenset(evaluations.non_finite(self._run(home)))
      self._why_unknown = ""
    except processes.ChildError as error:  # tried again at the next NaN
      self._why_unknown = f"which one device cannot be compared with: {error}"


def home_placement(problem: Problem) -> Placement:
  """Every group on the first device that it may be on."""
  row = splits.home(problem)[problem.group_of]
  return Placement(problem, row.astype(np.int32))

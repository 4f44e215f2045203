"""The time and the number of evaluations of a search."""

import contextlib
import contextvars
import dataclasses
import math
import threading
import time
from collections.abc import Iterator

from tfplace.errors import TfplaceError
from tfplace.graph.argument_checks import check_number, make_fields_plain

_CANCELLED: contextvars.ContextVar[threading.Event | None] = (
  contextvars.ContextVar("cancelled", default=None)
)


@contextlib.contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
  """Ends all budgets that are created in this context when `event` is set."""
  token = _CANCELLED.set(event)
  try:
    yield
  finally:
    _CANCELLED.reset(token)


@dataclasses.dataclass(frozen=True)
class Budget:
  """The time and number of evaluations that a placer may use.

  Attributes:
    seconds: wall-clock seconds; one-shot placers may ignore it.
    max_evaluations: maximum number of evaluated placements, or None.
    started: `time.perf_counter()` at the start of the clock.
    gap: share of the lower bound by which the best step time may exceed it for
      a search to end early. Above 0, a search also ends early once it improves
      no more. With 0, only a proven optimum ends it.
    cancelled: event that ends the budget, see `cancelled_by`, or None.
  """

  seconds: float
  max_evaluations: int | None = None
  gap: float = 0.0
  started: float = dataclasses.field(default_factory=time.perf_counter)
  cancelled: threading.Event | None = dataclasses.field(
    default_factory=_CANCELLED.get
  )

  def __post_init__(self) -> None:
    make_fields_plain(self)

  @property
  def is_cancelled(self) -> bool:
    return self.cancelled is not None and self.cancelled.is_set()

  @property
  def left_s(self) -> float:
    if self.is_cancelled:
      return 0.0
    return self.seconds - (time.perf_counter() - self.started)

  @property
  def is_timed(self) -> bool:
    """True if only time limits it; results then depend on the machine."""
    return self.max_evaluations is None

  @property
  def is_over(self) -> bool:
    return self.left_s <= 0 or self.max_evaluations == 0

  @property
  def spent(self) -> float:
    """Elapsed fraction of `seconds`; above 1 when they are over."""
    return (time.perf_counter() - self.started) / max(self.seconds, 1e-9)

  def fraction(self, share: float) -> "Budget":
    """Returns a share of the whole budget, of at least one evaluation."""
    most = self.max_evaluations
    most = None if most is None else max(1, int(share * most))
    return Budget(share * self.seconds, most, self.gap)

  def minus(self, evaluations: int, seconds: float = 0.0) -> "Budget":
    """Returns the rest after evaluations, elapsed time and further seconds."""
    most = self.max_evaluations
    most = None if most is None else max(0, most - evaluations)
    return Budget(max(0.0, self.left_s - seconds), most, self.gap)


def check_gap(gap: float) -> None:
  """Raises TfplaceError unless a gap is finite and at least 0."""
  check_number("gap", gap)
  if not 0 <= gap < math.inf:
    raise TfplaceError(
      f"gap is {gap}; it must be a share of the lower bound such as 0.02, or 0"
      " for the whole budget"
    )


def check_budget(budget_s: float) -> None:
  """Raises TfplaceError unless a budget in seconds is finite and above 0."""
  check_number("budget_s", budget_s)
  if not 0 < budget_s < math.inf:
    raise TfplaceError(
      f"budget_s is {budget_s}; it must be above 0"
      f"{' and finite' if budget_s > 0 else ''}"
    )

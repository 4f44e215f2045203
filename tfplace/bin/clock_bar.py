"""The bar that commands show on a terminal: time, and the stage of the work."""

import time
from collections.abc import Callable, Iterator

from rich import console, progress

PROGRESS_AFTER_S = 2.0


class ClockBar(progress.Progress):
  """A bar that follows the clock each time it is drawn.

  Args:
    screen: the terminal.
    what: is done.
    seconds: that it takes; None draws a pulse.
  """

  def __init__(
    self, screen: console.Console, what: str, seconds: float | None = None
  ) -> None:
    # Before the base class, which draws once while it is made.
    self._what = what
    self._seconds = seconds
    self._stage = ""
    self._count: Callable[[], int] | None = None
    self._started = time.monotonic()
    super().__init__(
      progress.TextColumn("{task.description}", markup=False),
      progress.BarColumn(),
      progress.TimeElapsedColumn(),
      console=screen,
      transient=True,
    )
    self.add_task(what, total=seconds, visible=False)

  def show_stage(
    self, what: str, count: Callable[[], int] | None = None
  ) -> None:
    """Names the stage from now on, and how far it is where it can be told."""
    self._stage, self._count = what, count

  def get_renderables(self) -> Iterator[console.RenderableType]:
    elapsed = time.monotonic() - self._started
    for task in self.tasks:
      task.visible = elapsed > PROGRESS_AFTER_S
      task.description = self._description()
      if self._seconds is not None:
        task.completed = min(elapsed, self._seconds)
    yield from super().get_renderables()

  def _description(self) -> str:
    parts = [self._what]
    if self._stage:
      parts.append(f": {self._stage}")
    if self._count is not None:
      parts.append(f", {self._count():,} ops")
    return "".join(parts)

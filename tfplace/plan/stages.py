"""Display and timer of the stages of planning."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tfplace.graph.progress import Progress, silent

# Displays a stage while it runs: its name, such as "search", text after it,
# such as " by auto, for up to 30 s", and its time limit in seconds, or None.
ShowStage: TypeAlias = Callable[
  [str, str, float | None], contextlib.AbstractContextManager[Progress]
]


class Stages:
  """Display and timer of the stages of planning.

  Attributes:
    seconds: duration in seconds by stage, without the stages inside it.
  """

  def __init__(self, show: ShowStage | None = None) -> None:
    """Takes the display of stages; without `show`, stages are only timed."""
    self.seconds: dict[str, float] = {}
    self._show = show
    self._inner_s: list[float] = []  # Of each open stage.

  @contextlib.contextmanager
  def timed(self, stage: str) -> Iterator[None]:
    """Times a stage that has a display of its own."""
    began = time.monotonic()
    self._inner_s.append(0.0)
    try:
      yield
    finally:
      took_s = time.monotonic() - began
      own_s = took_s - self._inner_s.pop()
      self.seconds[stage] = self.seconds.get(stage, 0.0) + own_s
      if self._inner_s:
        self._inner_s[-1] += took_s

  @contextlib.contextmanager
  def loading_placers(self) -> Iterator[None]:
    """Times the loading of placers; displays it only if kernels compile."""
    from tfplace.simulate import jit  # Imports Numba.

    loading, compiling = "loading the placers", "compiling the placers"
    compiled = []

    def show() -> None:
      compiled.append(True)
      if self._show is not None:
        shown = self._show(compiling, ", once per installation", None)
        stack.enter_context(shown)

    with self.timed(loading), contextlib.ExitStack() as stack:
      stack.enter_context(jit.on_compilation(show))
      yield
    if compiled:
      so_far = self.seconds.get(compiling, 0.0)
      self.seconds[compiling] = so_far + self.seconds.pop(loading)

  @contextlib.contextmanager
  def __call__(
    self, stage: str, detail: str = "", seconds: float | None = None
  ) -> Iterator[Progress]:
    """Displays and times a stage; see `ShowStage`."""
    with (
      self.timed(stage),
      self._show(stage, detail, seconds)
      if self._show
      else contextlib.nullcontext(silent) as on_stage,
    ):
      yield on_stage

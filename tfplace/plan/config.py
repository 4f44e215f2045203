"""Settings of planning, and the display of its stages."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from tfplace import placers
from tfplace.core import order as orders
from tfplace.core.argument_checks import check_count, make_fields_plain
from tfplace.core.budget import check_budget, check_gap
from tfplace.core.microbatches import WHOLE, VariantConfig
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.progress import Progress, silent
from tfplace.cost.measured_costs import noise_of
from tfplace.errors import TfplaceError, shown
from tfplace.placers import registry
from tfplace.placers.dask_workers import check_dask

if TYPE_CHECKING:
  from tfplace.placers.dask_workers import Workers

SINGLE = "single"
AUTO = "auto"  # The strategy that chooses among the others.
# Upper limit of the tolerance that follows from noise; our choice.
_MOST_NOISE = 0.02


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """Settings of the planner, checked when they are made.

  Attributes:
    strategy: name of a placer.
    budget_s: time limit of the lower-bound proof and the placer, in seconds.
    seed: seed of the placer's random choices.
    policy: exported policy of a learned strategy. None selects the shipped
      policy.
    baselines: strategies to compare the placement with.
    init_placement: placement from which the search starts, see
      `tfplace.place`, or None.
    tolerance: share of the step time that `auto` may give up for less traffic.
      None selects the noise of measured costs (`measured_costs.step_noise`), or
      0 for estimated costs.
    max_evaluations: limit of the number of evaluations, so that a seed gives
      the same plan on every machine. None means a time limit only.
    gap: share of the lower bound by which the step time may exceed it for the
      search to end early, see `tfplace.place`.
    order: order in which a device runs its ready ops, see `tfplace.place`.
      "auto" chooses that of a microbatched step with the placement.
    microbatches: microbatches of the step. If they are chosen, the count is
      ignored, and the other fields apply to all step variants.
    chooses_microbatches: whether the number of microbatches and the number in
      flight are chosen together with the placement.
    chooses_recomputation: whether activations may be recomputed where memory
      is short.
    measure: whether placements run on the devices of the source, if it has any,
      and the measured step times decide.
    compare: whether a microbatched step is compared numerically with the whole
      step, if the source can run it.
    dask: address of a Dask scheduler whose workers search, or "local" to start
      workers on this machine; see `tfplace.place`. None searches here.
    workers: workers of `dask`, which the planner opens.

  Raises:
    TfplaceError: a strategy or order is unknown (the message lists the
      choices), or a number is invalid.
  """

  strategy: str = "auto"
  budget_s: float = 30.0
  seed: int = 0
  policy: str | None = None
  baselines: tuple[str, ...] = (SINGLE,)
  init_placement: Placement | Mapping[str, str] | None = None
  tolerance: float | None = None
  max_evaluations: int | None = None
  gap: float = 0.02
  order: str = orders.AUTO
  microbatches: VariantConfig = WHOLE
  chooses_microbatches: bool = False
  chooses_recomputation: bool = False
  measure: bool = False
  compare: bool = False
  dask: str | None = None
  workers: "Workers | None" = None

  def __post_init__(self) -> None:
    make_fields_plain(self)
    known = isinstance(self.strategy, str)
    if not known or self.strategy not in placers.STRATEGIES:
      raise TfplaceError(
        f"unknown strategy {shown(self.strategy)}; choose one of"
        f" {', '.join(placers.STRATEGIES)}"
      )
    if self.init_placement is not None:
      registry.check_accepts_start(self.strategy)
    check_budget(self.budget_s)
    check_gap(self.gap)
    check_count("seed", self.seed, 0)
    orders.check_order(self.order, (*orders.ORDERS, orders.AUTO))
    if self.dask is not None:
      check_dask(self.dask)

  @property
  def searches(self) -> bool:
    """Returns whether the strategy can start from a given placement."""
    return registry.STRATEGIES[self.strategy].accepts_start

  @property
  def chooses_variant(self) -> bool:
    """Returns whether the step variant is chosen with the placement."""
    return self.chooses_microbatches or self.chooses_recomputation

  def tolerance_of(self, problem: Problem) -> float:
    """Returns the tolerance for the costs of a problem."""
    if self.tolerance is not None:
      return self.tolerance
    return min(noise_of(problem.graph), _MOST_NOISE)


class ShowStage(Protocol):
  """Callable that displays a stage of planning while it runs."""

  def __call__(
    self, stage: str, detail: str, seconds: float | None
  ) -> contextlib.AbstractContextManager[Progress]:
    """Returns a context for the stage, which yields a progress callback.

    Args:
      stage: name of the stage, such as "search".
      detail: text after the name, such as " by auto, for up to 30 s".
      seconds: time limit of the stage in seconds, or None.
    """


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
        told = self._show(compiling, ", once per installation", None)
        stack.enter_context(told)

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

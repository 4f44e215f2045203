"""One request: what users ask of an extraction, an estimate or a plan."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from tfplace import placers
from tfplace.cost import registry as cost_registry
from tfplace.cost.measured_costs import noise_of
from tfplace.errors import ApplyError, TfplaceError, shown
from tfplace.graph import order as orders
from tfplace.graph.argument_checks import AUTO, check_count, make_fields_plain
from tfplace.graph.budget import check_budget, check_gap
from tfplace.graph.microbatches import (
  WHOLE,
  VariantConfig,
  check_in_flight,
  is_auto,
)
from tfplace.graph.op_graph import XLA
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.recompute import NONE, recompute_config
from tfplace.placers import registry
from tfplace.placers.dask_workers import check_dask

if TYPE_CHECKING:
  from tfplace.placers.dask_workers import Workers

SINGLE = "single"
COMPILE = (AUTO, NONE, XLA)
# Costs that are no cost models.
MEASURED, _ESTIMATED = "measured", "estimated"
# Upper limit of the tolerance that follows from noise; our choice.
_MOST_NOISE = 0.02

# A layer name, a pattern, or several of them that share one device.
LayerGroup: TypeAlias = str | Sequence[str]


class StepOptions(TypedDict, total=False):
  """Options of all functions that extract a step.

  Attributes:
    batch_size: examples per step. None, the default, takes the size from the
      model's inputs or from an earlier `fit`, or Keras' default of 32.
    microbatches: number of microbatches of the training step, or the examples
      of each, such as [10, 10, 2, 2]. 1 by default. "auto", for plans, chooses
      them together with the placement.
    max_in_flight: maximum number of microbatches in flight; None, the default,
      means all.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch; False by default.
    recompute: activations that the backward pass of a training step computes
      again instead of keeping them. "none", the default; "all" layers, in
      segments that need the least memory; or a list of layer names and
      patterns such as ["block_*"], of which each layer is a segment (a nested
      list is one segment). "auto", for plans, recomputes only where memory is
      short, and then as few of them as fit. Numbers stay the same, dropout
      included.
    costs: name of the cost model. In plans of Keras models, "measured" runs the
      step for a few seconds without changing the model, and "estimated" does
      not; None, the default, measures if the cluster is None.
    compile: whether XLA compiles the steps in units of one layer, pass and
      microbatch: "xla", "none", or "auto", the default, which does what Keras
      does with the unplaced step on such devices (`jit_compile`). Ops that XLA
      lacks run as they are, and so do custom training loops.
  """

  batch_size: int | None
  microbatches: int | Sequence[int] | str
  max_in_flight: int | None
  allow_batch_statistics: bool
  recompute: str | Sequence[str | Sequence[str]]
  costs: str | None
  compile: str


class PlanOptions(StepOptions, total=False):
  """Options of planning, besides those of `StepOptions`.

  Attributes:
    strategy: name of a placer; "auto" by default.
    budget_s: time limit of the search, 30 seconds by default. Tracing, and
      measuring where costs are measured, come on top; the plan tells the
      seconds of each stage.
    gap: the search ends early once the step takes at most this share more than
      its proven lower bound (0.02 by default), or, on small graphs, once a
      third of the budget gained nothing. 0 uses the whole budget.
    seed: seed of the placer's random choices; 0 by default.
    order: order in which a device runs its ready ops: "arrival", "rank" or
      "auto", the default. For a microbatched step, "auto" selects rank if it
      gains at least 3%, or if the step fits in memory only by rank; a whole
      step runs in order of arrival.
    max_memory: memory limit by device, in bytes or as text such as "10GiB".
    keep_together: layers, patterns such as "block_1_*", or lists of these;
      each entry gets one device.
    check: whether to run a microbatched step and the whole step once on this
      host and compare loss, metrics and updates; True by default.
    dask: address of a Dask scheduler whose workers search, or "local" for one
      worker in a thread of this process; None, the default, uses no Dask.
    verbose: 1 prints the stages of planning; "auto", the default, prints on a
      terminal.
  """

  strategy: str
  budget_s: float
  gap: float
  seed: int
  order: str
  max_memory: Mapping[str, str | float] | None
  keep_together: Iterable[LayerGroup]
  check: bool
  dask: str | None
  verbose: str | int


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """One request, checked when it is made.

  Attributes not described here are options of the same name, see `PlanOptions`
  and `StepOptions`.

  Attributes:
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
    variant: variant of the step. If microbatches are chosen, their count is
      ignored, and the other fields apply to all step variants.
    chooses_microbatches: whether the number of microbatches and the number in
      flight are chosen together with the placement.
    chooses_recomputation: whether activations may be recomputed where memory
      is short.
    measure: whether placements run on the devices of the source, if it has any,
      and the measured step times decide.
    measures_costs: whether the step runs once to measure its costs. None leaves
      that to the caller.
    workers: workers of `dask`, which the planner opens.

  Raises:
    TfplaceError: an option is invalid. The message names it, its value, and the
      choices.
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
  order: str = AUTO
  variant: VariantConfig = WHOLE
  chooses_microbatches: bool = False
  chooses_recomputation: bool = False
  measure: bool = False
  check: bool = False
  dask: str | None = None
  batch_size: int | None = None
  costs: str = cost_registry.DEFAULT
  measures_costs: bool | None = None
  compile: str = AUTO
  max_memory: Mapping[str, str | float] = dataclasses.field(
    default_factory=dict
  )
  keep_together: tuple[tuple[str, ...], ...] = ()
  workers: "Workers | None" = None

  @classmethod
  def from_options(
    cls, options: Mapping[str, Any], kind: type = PlanOptions, **fields: Any
  ) -> "PlanConfig":
    """Takes the options of a user, and further fields.

    Args:
      options: `PlanOptions`, or `StepOptions` if nothing is planned.
      kind: which of them.
      **fields: fields of the request that are no options.
    """
    for name in options:
      if name not in kind.__annotations__:
        known = kind.__annotations__
        ways_out = f"it has {', '.join(known)}"
        for near in difflib.get_close_matches(name, known, n=1):
          ways_out = f"did you mean {near!r}?"
        raise TypeError(f"tfplace has no keyword {name!r}: {ways_out}")
    plans = kind is PlanOptions
    given = dict(options)
    given.pop("verbose", None)
    microbatches = given.pop("microbatches", 1)
    chooses = plans and is_auto(microbatches)
    recompute = given.pop("recompute", NONE)
    variant = VariantConfig.from_microbatches(
      1 if chooses else microbatches,
      given.pop("max_in_flight", None),
      given.pop("allow_batch_statistics", False),
      recompute_config(recompute, may_choose=plans),
    )
    if not chooses:
      check_in_flight(variant)
    costs = given.pop("costs", None)
    if costs is not None:
      is_name = isinstance(costs, str)
      given["measures_costs"] = is_name and costs == MEASURED
      if not (plans and is_name and costs in (MEASURED, _ESTIMATED)):
        given["costs"] = costs
    if "keep_together" in given:
      given["keep_together"] = _groups(given["keep_together"])
    if given.get("max_memory", {}) is None:
      del given["max_memory"]
    return cls(
      variant=variant,
      chooses_microbatches=chooses,
      chooses_recomputation=plans and is_auto(recompute),
      **{"check": plans, **given},
      **fields,
    )

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
      if self.choices:
        raise ApplyError(
          "init_placement is of a step that is known: give its own values"
          f" instead of {' and '.join(self.choices)}"
        )
    check_budget(self.budget_s)
    check_gap(self.gap)
    check_count("seed", self.seed, 0)
    orders.check_order(self.order, (*orders.ORDERS, AUTO))
    check_costs(self.costs)
    check_compile(self.compile)
    if self.batch_size is not None:
      size = check_count("batch_size", self.batch_size, 1)
      object.__setattr__(self, "batch_size", size)
    if not isinstance(self.check, bool):
      raise TfplaceError(
        f"check is {self.check!r:.60}; it must be True or False"
      )
    if not isinstance(self.max_memory, Mapping):
      raise TfplaceError(
        "max_memory is a mapping from devices to sizes, such as"
        f" {{'GPU:0': '10GiB'}}, not {self.max_memory!r:.60}"
      )
    if self.dask is not None:
      check_dask(self.dask)

  @property
  def searches(self) -> bool:
    """Returns whether the strategy can start from a given placement."""
    return registry.STRATEGIES[self.strategy].accepts_start

  @property
  def choices(self) -> list[str]:
    """Options that leave a choice of the step variant to planning."""
    chosen = {
      "microbatches": self.chooses_microbatches,
      "recompute": self.chooses_recomputation,
    }
    return [f"{name}={AUTO!r}" for name, is_open in chosen.items() if is_open]

  @property
  def chooses_variant(self) -> bool:
    """Returns whether the step variant is chosen with the placement."""
    return bool(self.choices)

  def tolerance_of(self, problem: Problem) -> float:
    if self.tolerance is not None:
      return self.tolerance
    return min(noise_of(problem.graph), _MOST_NOISE)


def check_compile(compile: str) -> None:
  """Raises TfplaceError for a value that is not one of the choices."""
  if not isinstance(compile, str) or compile not in COMPILE:
    raise TfplaceError(
      f"compile is {shown(compile)}; choose one of {', '.join(COMPILE)}"
    )


def check_costs(name: str) -> None:
  """Raises TfplaceError unless a cost model, which needs no run, exists."""
  names = cost_registry.COST_MODELS
  if not isinstance(name, str) or name not in names:
    raise TfplaceError(
      f"unknown cost model {shown(name)}; choose one of {', '.join(names)}, or"
      f" {MEASURED} or {_ESTIMATED} in plans of Keras models"
    )


def _groups(groups: Iterable[LayerGroup]) -> tuple[tuple[str, ...], ...]:
  """Returns the groups of `keep_together`, each as a tuple of names."""
  if isinstance(groups, str) or not isinstance(groups, Iterable):
    groups = (groups,)
  result = []
  for group in groups:
    names = group if isinstance(group, (list, tuple)) else (group,)
    if not names or not all(isinstance(name, str) for name in names):
      raise ApplyError(
        "keep_together takes names of layers, patterns, and lists of them, not"
        f" {group!r:.60}"
      )
    result.append(tuple(names))
  return tuple(result)

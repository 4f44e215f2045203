"""User functions that plan and place Keras 3 models.

They modify only the given model object. Environment variables, Keras classes
and TensorFlow settings stay as they are.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import keras

from tfplace.core.microbatches import (
  MicrobatchConfig,
  check_in_flight,
  is_auto,
)
from tfplace.core.recompute import AUTO, NONE, recompute_config
from tfplace.errors import ApplyError, ExtractionError
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.microbatches import microbatched_step
from tfplace.keras import host_memory, planning, state
from tfplace.keras.controller import Controller, Planner, controller_of
from tfplace.keras.given_placement import (
  PlanLike,
  assignments_of,
  given_planner,
)
from tfplace.plan import Plan, PlanConfig
from tfplace.plan.clusters import ClusterLike

_logger = logging.getLogger("tfplace")

P = ParamSpec("P")
ModelT = TypeVar("ModelT", bound=keras.Model)


def place_model(
  model: ModelT,
  cluster: ClusterLike | None = None,
  *,
  strategy: str = "auto",
  batch_size: int | None = None,
  budget_s: float = 30.0,
  gap: float = 0.02,
  seed: int = 0,
  placement: PlanLike | None = None,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[str | Sequence[str]] = (),
  verbose: str | int = "auto",
  costs: str | None = None,
  microbatches: int | Sequence[int] | str = 1,
  max_in_flight: int | None = None,
  allow_batch_statistics: bool = False,
  recompute: str | Sequence[str | Sequence[str]] = NONE,
  order: str = AUTO,
  check: bool = True,
  dask: str | None = None,
) -> ModelT:
  """Places a Keras 3 model's ops and variables on devices.

  Modifies the model in place and returns it. The model keeps its weights,
  optimizer state and `compile`. It gains `model.placement` (a `Plan`, None
  until the plan is made) and `model.placement_scope()` for a GradientTape
  loop. If the loss, optimizer or
  shapes are unknown, planning waits for the first fit. If strategy "auto"
  finds nothing faster than one device, the model stays unchanged. A strategy
  given by name is always applied; the message reports a slowdown.

  Args:
    model: a Keras 3 model on the TensorFlow backend.
    cluster: a `Cluster`, a preset or the path of a cluster file. Its devices
      must belong to this process. None selects the GPUs and CPU:0, or the CPU
      devices if there are no GPUs.
    strategy: name of a placer.
    batch_size: batch size to plan for. None takes it from the model's inputs
      or from the first fit.
    budget_s: time limit of the search, in seconds. Tracing, and measuring
      where costs are measured, come on top; the plan tells the seconds of each
      stage.
    gap: the search ends early once the step takes at most this share more than
      its proven lower bound, or, on small graphs, once a third of the
      budget gained nothing. 0 uses the whole budget.
    seed: seed of the placer's random choices.
    placement: existing placement to apply without planning: a result of
      `plan_model`, a `Placement`, a file, or a mapping from ops or layers to
      devices.
    max_memory: memory limit by device, in bytes or as text such as "10GiB".
    keep_together: layers, patterns such as "block_1_*", or lists of these;
      each entry gets one device.
    verbose: 1 prints the stages of planning; "auto" prints on a terminal.
    costs: "measured" runs the step for a few seconds without changing the
      model; "estimated" or the name of a cost model does not run it. None
      measures if `cluster` is None.
    microbatches: number of microbatches of the training step, or the examples
      of each, such as [10, 10, 2, 2]; "auto" chooses them together with the
      placement.
    max_in_flight: maximum number of microbatches in flight; None means all.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch.
    recompute: activations that the backward pass of a training step computes
      again instead of keeping them. "none"; "all" layers, in segments that need
      the least memory; "auto", which is only where memory is short, and then as
      few of them as fit; or a list of layer names and patterns such as
      ["block_*"], of which each layer is a segment (a nested list is one
      segment). Numbers stay the same, dropout included.
    order: order in which a device runs its ready ops: "arrival", "rank" or
      "auto". For a microbatched step, "auto" selects rank if it gains at least
      3%, or if the step fits in memory only by rank; a whole step runs in order
      of arrival.
    check: whether to run a microbatched step and the whole step once on this
      host and compare loss, metrics and updates.
    dask: address of a Dask scheduler whose workers search, or "local" to start
      workers on this machine; None searches in this process.

  Returns:
    `model`.

  Raises:
    ApplyError: model, devices and placement do not match.
    TfplaceError: an argument is invalid, the step cannot be split, or no
      placement fits in memory.
  """
  _check_model(model)
  state.check_not_eager(model)
  config = PlanConfig(
    strategy=strategy,
    budget_s=budget_s,
    gap=gap,
    seed=seed,
    order=order,
    microbatches=_microbatches(
      model,
      microbatches,
      max_in_flight,
      allow_batch_statistics,
      recompute,
    ),
    chooses_microbatches=is_auto(microbatches),
    chooses_recomputation=recompute == AUTO,
    compare=check,
    dask=dask,
  )
  if placement is None:
    request = planning.make_request(
      cluster,
      config,
      batch_size=batch_size,
      max_memory=max_memory,
      keep_together=keep_together,
      verbose=verbose,
      costs=costs,
    )
    planner = planning.planner(model, request)
  else:
    _check_nothing_to_plan(
      max_memory=max_memory,
      keep_together=keep_together,
      costs=costs,
      dask=dask,
      **{"microbatches='auto'": is_auto(microbatches)},
      **{"recompute='auto'": recompute == AUTO},
      **{f"order={order!r:.60}": order != AUTO},
      **{f"strategy={strategy!r:.60}": strategy != AUTO},
    )
    planner = given_planner(placement, model, config.microbatches)
  return _placed(model, planner, placement is not None, batch_size)


def plan_model(
  model: keras.Model,
  cluster: ClusterLike | None = None,
  *,
  strategy: str = "auto",
  batch_size: int | None = None,
  budget_s: float = 30.0,
  gap: float = 0.02,
  seed: int = 0,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[str | Sequence[str]] = (),
  sample: Any = None,
  verbose: str | int = "auto",
  costs: str | None = None,
  microbatches: int | Sequence[int] | str = 1,
  max_in_flight: int | None = None,
  allow_batch_statistics: bool = False,
  recompute: str | Sequence[str | Sequence[str]] = NONE,
  order: str = AUTO,
  init_placement: PlanLike | None = None,
  check: bool = True,
  dask: str | None = None,
) -> Plan:
  """Plans a placement of a Keras 3 model without applying it.

  Args:
    model: a Keras 3 model on the TensorFlow backend. The training step of a
      compiled model is planned, otherwise its inference step. The model and
      its optimizer are built if necessary.
    cluster: see `place_model`. This process need not have the devices of the
      cluster (for example "v100x2"); the plan can be applied on a host that
      has them.
    strategy: name of a placer.
    batch_size: batch size of the step. None takes that of `sample`, of an
      earlier `fit` if it is fixed, or 32.
    budget_s: time limit of proof and search, in seconds.
    gap: see `place_model`.
    seed: seed of the placer's random choices.
    max_memory: memory limit by device, in bytes or as text such as "10GiB".
    keep_together: layers or patterns; each entry gets one device.
    sample: a batch `x`, `(x, y)` or `(x, y, sample_weight)`. Without it, the
      shapes are those of the first `fit`, `evaluate` or `predict` since
      `compile`, or those that the model defines.
    verbose: see `place_model`.
    costs: see `place_model`.
    microbatches: see `place_model`.
    max_in_flight: see `place_model`.
    allow_batch_statistics: see `place_model`.
    recompute: see `place_model`.
    order: see `place_model`.
    init_placement: earlier plan from which the search starts, in any form that
      `place_model` accepts as `placement`. Missing devices and ops are
      replaced by others. Not allowed where a step variant is chosen ("auto").
    check: see `place_model`.
    dask: see `place_model`.

  Returns:
    The plan, to be applied with `place_model(model, placement=plan)`.

  Raises:
    ApplyError: `init_placement` is given, and a step variant is chosen.
    ExtractionError: the shapes are unknown (the message has an example of how
      to give them), or the step cannot be split.
    TfplaceError: see `place_model`.
  """
  _check_model(model)
  divided = _microbatches(
    model,
    microbatches,
    max_in_flight,
    allow_batch_statistics,
    recompute,
  )
  if not (model.compiled or divided.is_whole):
    raise ExtractionError(
      f"microbatches is {microbatches}, and model {model.name!r} is not"
      " compiled: only a training step is split"
    )
  if not (model.compiled or recompute == NONE):
    raise ExtractionError(
      f"recompute is {recompute!r:.60}, and model {model.name!r} is not"
      " compiled: only a training step recomputes"
    )
  start = None
  if init_placement is not None:
    ways = {"microbatches": microbatches, "recompute": recompute}
    chosen = [f"{name}='auto'" for name, way in ways.items() if is_auto(way)]
    if chosen:
      raise ApplyError(
        "init_placement is of a step that is known: give its own values instead"
        f" of {' and '.join(chosen)}"
      )
    start = assignments_of(init_placement)
  config = PlanConfig(
    strategy=strategy,
    budget_s=budget_s,
    gap=gap,
    seed=seed,
    init_placement=start,
    order=order,
    microbatches=divided,
    chooses_microbatches=is_auto(microbatches),
    chooses_recomputation=recompute == AUTO,
    compare=check,
    dask=dask,
  )
  request = planning.make_request(
    cluster,
    config,
    batch_size=batch_size,
    max_memory=max_memory,
    keep_together=keep_together,
    verbose=verbose,
    costs=costs,
    is_what_if=True,
  )
  planner = planning.planner(model, request)
  return planner("train" if model.compiled else "predict", sample)


def _microbatches(
  model: keras.Model,
  microbatches: int | Sequence[int] | str,
  max_in_flight: int | None,
  allow_batch_statistics: bool,
  recompute: Any,
) -> MicrobatchConfig:
  """Returns the requested step variant; "auto" starts as the whole step.

  Raises:
    ExtractionError: the step is known to be impossible to split.
  """
  config = MicrobatchConfig.of(
    1 if is_auto(microbatches) else microbatches,  # type: ignore[arg-type]
    max_in_flight,
    allow_batch_statistics,
    recompute_config(recompute, may_choose=True),
  )
  config.check()
  if max_in_flight is not None and not is_auto(microbatches):
    check_in_flight(config)
  if model.compiled and not config.is_whole:
    microbatched_step.check_microbatches(model, config)
  return config


def _check_nothing_to_plan(**options: Any) -> None:
  for name, value in options.items():
    if value:
      raise ApplyError(
        f"{name} is for planning, and a placement that is given is not planned"
      )


def _check_model(model: Any) -> None:
  if not isinstance(model, keras.Model):
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise ApplyError(f"only a Keras 3 model can be placed, not a {kind}")
  if keras.backend.backend() != "tensorflow":
    raise ApplyError(
      f"model {model.name!r} is on Keras backend"
      f" {keras.backend.backend()!r}; only 'tensorflow' has placements"
    )
  if isinstance(model, keras.Sequential) and not model.layers:
    raise ApplyError(f"model {model.name!r} has no layers to place")
  if getattr(model, "_distribute_strategy", None) is not None:
    raise ApplyError(
      f"model {model.name!r} belongs to a tf.distribute strategy, which"
      " places it already"
    )


def _placed(
  model: ModelT, planner: Planner, is_given: bool, batch_size: int | None
) -> ModelT:
  """Attaches a new controller, which plans at once if all is known."""
  previous = controller_of(model)
  with state.functions_renewed(model):  # A callback of `fit` may call this.
    if previous is not None:
      previous.detach()
    controller = Controller(model, planner)
    if is_given:
      controller.plan_now("train")
    elif batch_size or inputs.static_batch_size(model):
      _plan_if_known(controller, model)
  return model


def _plan_if_known(controller: Controller, model: keras.Model) -> None:
  if not (model.built and model.compiled):
    return
  try:
    controller.plan_now("train")
  except ExtractionError as error:
    _logger.info("model %r is planned at its first fit: %s", model.name, error)


@overload
def placed(function: Callable[P, ModelT], /) -> Callable[P, ModelT]: ...


@overload
def placed(
  **options: Any,
) -> Callable[[Callable[P, ModelT]], Callable[P, ModelT]]: ...


def placed(function: Any = None, /, **options: Any) -> Any:
  """Places the model that the decorated function returns.

  The function builds the model in host memory, so a model may be larger than
  any one device. Once it is planned, each weight moves to its device; of a
  model that stays unplaced, to TensorFlow's default device.

      @tfplace.placed
      def build(): ...

      @tfplace.placed(strategy="m_etf", budget_s=10)
      def build(): ...

  Args:
    function: function that builds and returns a Keras model.
    **options: keyword arguments of `place_model`.

  Returns:
    The decorated function, or a decorator if only options are given.

  Raises:
    ApplyError: raised on the call, if the function returns no Keras 3 model.
    TypeError: a keyword is unknown, or `function` is not callable.
  """
  _check_options(options)
  if function is None:
    return functools.partial(_decorate, options)
  if not callable(function):
    raise TypeError(f"placed() decorates a function, not {function!r:.60}")
  return _decorate(options, function)


def _check_options(options: dict[str, Any]) -> None:
  known = inspect.signature(place_model).parameters
  for name in options:
    if name not in known or name == "model":
      raise TypeError(f"placed() has no keyword {name!r}")


def _decorate(
  options: dict[str, Any], function: Callable[P, ModelT]
) -> Callable[P, ModelT]:
  @functools.wraps(function)
  def build(*args: P.args, **kwargs: P.kwargs) -> ModelT:
    with host_memory.built_on_host():
      model = function(*args, **kwargs)
    _check_model(model)
    host_memory.keep_building_on_host(model)
    return place_model(model, **options)

  return build

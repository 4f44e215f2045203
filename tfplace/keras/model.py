"""User functions that plan and place Keras 3 models.

They modify only the given model object. Environment variables, Keras classes
and TensorFlow settings stay as they are.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import keras

from tfplace.core.microbatches import is_auto
from tfplace.core.recompute import NONE
from tfplace.errors import ApplyError, ExtractionError, shown
from tfplace.extraction import keras_inputs as inputs
from tfplace.keras import host_memory, planning, state
from tfplace.keras.controller import Controller, controller_of
from tfplace.keras.given_placement import (
  PlanLike,
  assignments_of,
  given_planner,
)
from tfplace.keras.planning import PlanOptions
from tfplace.plan import Plan
from tfplace.plan.clusters import ClusterLike
from tfplace.plan.config import AUTO

_logger = logging.getLogger("tfplace")

P = ParamSpec("P")
ModelT = TypeVar("ModelT", bound=keras.Model)


def place_model(
  model: ModelT,
  cluster: ClusterLike | None = None,
  *,
  placement: PlanLike | None = None,
  **options: Unpack[PlanOptions],
) -> ModelT:
  """Places a Keras 3 model's ops and variables on devices.

  Modifies the model in place and returns it. The model keeps its weights,
  optimizer state and `compile`. It gains `model.placement` (a `Plan`, None
  until the plan is made) and `model.placement_scope()` for a GradientTape
  loop. If the loss, optimizer or shapes are unknown, planning waits for the
  first fit. If strategy "auto" finds nothing faster than one device, the model
  stays unchanged. A strategy given by name is always applied; the message
  reports a slowdown.

  Args:
    model: a Keras 3 model on the TensorFlow backend.
    cluster: a `Cluster`, a preset or the path of a cluster file. Its devices
      must belong to this process. None selects the GPUs and CPU:0, or the CPU
      devices if there are no GPUs.
    placement: existing placement to apply without planning: a result of
      `plan_model`, a `Placement`, a file, or a mapping from ops or layers to
      devices.
    **options: keyword arguments of planning, see below.

  Keyword Args:
    strategy: name of a placer; "auto" by default.
    batch_size: batch size to plan for. None, the default, takes it from the
      model's inputs or from the first fit.
    budget_s: time limit of the search, 30 seconds by default. Tracing, and
      measuring where costs are measured, come on top; the plan tells the
      seconds of each stage.
    gap: the search ends early once the step takes at most this share more than
      its proven lower bound (0.02 by default), or, on small graphs, once a
      third of the budget gained nothing. 0 uses the whole budget.
    seed: seed of the placer's random choices; 0 by default.
    max_memory: memory limit by device, in bytes or as text such as "10GiB".
    keep_together: layers, patterns such as "block_1_*", or lists of these;
      each entry gets one device.
    verbose: 1 prints the stages of planning; "auto", the default, prints on a
      terminal.
    costs: "measured" runs the step for a few seconds without changing the
      model; "estimated" or the name of a cost model does not run it. None, the
      default, measures if `cluster` is None.
    microbatches: number of microbatches of the training step, or the examples
      of each, such as [10, 10, 2, 2]; "auto" chooses them together with the
      placement. 1 by default.
    max_in_flight: maximum number of microbatches in flight; None, the default,
      means all.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch; False by default.
    recompute: activations that the backward pass of a training step computes
      again instead of keeping them. "none", the default; "all" layers, in
      segments that need the least memory; "auto", which is only where memory is
      short, and then as few of them as fit; or a list of layer names and
      patterns such as ["block_*"], of which each layer is a segment (a nested
      list is one segment). Numbers stay the same, dropout included.
    order: order in which a device runs its ready ops: "arrival", "rank" or
      "auto", the default. For a microbatched step, "auto" selects rank if it
      gains at least 3%, or if the step fits in memory only by rank; a whole
      step runs in order of arrival.
    check: whether to run a microbatched step and the whole step once on this
      host and compare loss, metrics and updates; True by default.
    compile: whether XLA compiles the placed steps in units of one layer, pass
      and microbatch: "xla", "none", or "auto", the default, which does what
      Keras does with the unplaced step on such devices (`jit_compile`). Ops
      that XLA lacks run as they are, and so do custom training loops.
    dask: address of a Dask scheduler whose workers search, or "local" to start
      workers on this machine; None, the default, searches in this process.

  Returns:
    `model`.

  Raises:
    ApplyError: model, devices and placement do not match.
    TfplaceError: an argument is invalid, the step cannot be split, or no
      placement fits in memory.
  """
  planning.check_names("place_model", options)
  _check_model(model)
  state.check_not_eager(model)
  if placement is None:
    request = planning.make_request(model, cluster, options)
    planner = planning.planner(model, request)
  else:
    planning.check_nothing_to_plan(options)
    variant = planning.step_variant(model, options)
    compile_ = options.get("compile", AUTO)
    planner = given_planner(placement, model, variant, compile_)
  previous = controller_of(model)
  with state.functions_renewed(model):  # A callback of `fit` may call this.
    if previous is not None:
      previous.detach()
    controller = Controller(model, planner)
    is_fixed = options.get("batch_size") or inputs.static_batch_size(model)
    if placement is not None:
      controller.plan_now("train")
    elif is_fixed and model.built and model.compiled:
      try:
        controller.plan_now("train")
      except ExtractionError as error:
        _logger.info(
          "model %r is planned at its first fit: %s", model.name, error
        )
  return model


def plan_model(
  model: keras.Model,
  cluster: ClusterLike | None = None,
  *,
  sample: Any = None,
  init_placement: PlanLike | None = None,
  **options: Unpack[PlanOptions],
) -> Plan:
  """Plans a placement of a Keras 3 model without applying it.

  Args:
    model: a Keras 3 model on the TensorFlow backend. The training step of a
      compiled model is planned, otherwise its inference step. The model and
      its optimizer are built if necessary.
    cluster: see `place_model`. This process need not have the devices of the
      cluster (for example "v100x2"); the plan can be applied on a host that
      has them.
    sample: a batch `x`, `(x, y)` or `(x, y, sample_weight)`. Without it, the
      shapes are those of the first `fit`, `evaluate` or `predict` since
      `compile`, or those that the model defines.
    init_placement: earlier plan from which the search starts, in any form that
      `place_model` accepts as `placement`. Missing devices and ops are
      replaced by others. Not allowed where a step variant is chosen ("auto").
    **options: keyword arguments of planning, see `place_model`. A `batch_size`
      of None takes that of `sample`, of an earlier `fit` if it is fixed, or 32.

  Returns:
    The plan, to be applied with `place_model(model, placement=plan)`.

  Raises:
    ApplyError: `init_placement` is given, and a step variant is chosen.
    ExtractionError: the shapes are unknown (the message has an example of how
      to give them), or the step cannot be split.
    TfplaceError: see `place_model`.
  """
  planning.check_names("plan_model", options)
  _check_model(model)
  variant = planning.step_variant(model, options)
  keeps_all = options.get("recompute", NONE) == NONE
  if not (model.compiled or (variant.is_whole and keeps_all)):
    name = "recompute" if variant.is_whole else "microbatches"
    raise ExtractionError(
      f"{name} is {shown(options.get(name))}, and model {model.name!r} is not"
      " compiled: only a training step is split, or recomputes"
    )
  start = None
  if init_placement is not None:
    names = ("microbatches", "recompute")
    chosen = [f"{name}='auto'" for name in names if is_auto(options.get(name))]
    if chosen:
      raise ApplyError(
        "init_placement is of a step that is known: give its own values instead"
        f" of {' and '.join(chosen)}"
      )
    start = assignments_of(init_placement)
  request = planning.make_request(
    model, cluster, options, init_placement=start, is_what_if=True
  )
  planner = planning.planner(model, request)
  return planner("train" if model.compiled else "predict", sample)


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
  planning.check_names("placed", options, "cluster", "placement")
  if function is None:
    return functools.partial(_decorate, options)
  if not callable(function):
    raise TypeError(f"placed() decorates a function, not {function!r:.60}")
  return _decorate(options, function)


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

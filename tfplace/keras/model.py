"""User functions that plan and place Keras 3 models.

They modify only the given model object. Environment variables, Keras classes
and TensorFlow settings stay as they are.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import keras

from tfplace.errors import ApplyError, ExtractionError
from tfplace.extraction import keras_inputs as inputs
from tfplace.keras import state, variables
from tfplace.keras.controller import apply
from tfplace.keras.given_placement import (
  PlanLike,
  given_plan,
  read_plan,
  start_of,
)
from tfplace.keras.planning import KerasPlanner, check_nothing_to_plan
from tfplace.plan.clusters import ClusterLike
from tfplace.plan.config import PlanConfig, PlanOptions
from tfplace.plan.plan import Plan

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
    placement: existing placement to apply without planning: a `Plan` or its
      file, a `Placement`, or a mapping from ops or layers to devices.
    **options: `PlanOptions`, such as `strategy` and `microbatches`.

  Returns:
    `model`.

  Raises:
    ApplyError: model, devices and placement do not match.
    TfplaceError: an argument is invalid, the step cannot be split, or no
      placement fits in memory.
  """
  _check_model(model)
  state.check_not_eager(model)
  if placement is not None:
    check_nothing_to_plan(options)
    apply(model, given_plan(placement, model, PlanConfig.from_options(options)))
    return model
  planner, plan = KerasPlanner(model, cluster, options), None
  is_fixed = planner.config.batch_size or inputs.static_batch_size(model)
  if is_fixed and model.built and model.compiled:
    try:
      plan = planner("train")
    except ExtractionError as error:
      _logger.info(
        "model %r is planned at its first fit: %s", model.name, error
      )
  apply(model, plan, planner)
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
    cluster: cluster as in `place_model`. This process need not have its devices
      (for example "v100x2"); the plan can be applied on a host that has them.
    sample: a batch `x`, `(x, y)` or `(x, y, sample_weight)`. Without it, the
      shapes are those of the first `fit`, `evaluate` or `predict` since
      `compile`, or those that the model defines.
    init_placement: earlier plan from which the search starts, in any form that
      `place_model` accepts as `placement`. Missing devices and ops are
      replaced by others. Not allowed where a step variant is chosen ("auto").
    **options: `PlanOptions`, such as `strategy` and `microbatches`.

  Returns:
    The plan, to be applied with `place_model(model, placement=plan)`.

  Raises:
    ApplyError: `init_placement` is given, and a step variant is chosen.
    ExtractionError: the shapes are unknown (the message has an example of how
      to give them), or the step cannot be split.
    TfplaceError: an argument is invalid, or no placement fits in memory.
  """
  _check_model(model)
  start = (
    None if init_placement is None else start_of(read_plan(init_placement))
  )
  planner = KerasPlanner(
    model, cluster, options, init_placement=start, is_what_if=True
  )
  planner.check_splits()
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


class PlaceOptions(PlanOptions, total=False):
  """Keyword arguments of `place_model`; see there and `PlanOptions`."""

  cluster: ClusterLike | None
  placement: PlanLike | None


@overload
def placed(function: Callable[P, ModelT], /) -> Callable[P, ModelT]:
  """Decorates a function without options."""


@overload
def placed(
  **options: Unpack[PlaceOptions],
) -> Callable[[Callable[P, ModelT]], Callable[P, ModelT]]:
  """Returns a decorator with options."""


def placed(function: Any = None, /, **options: Unpack[PlaceOptions]) -> Any:
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
    **options: keyword arguments of `place_model`, `PlaceOptions`.

  Returns:
    The decorated function, or a decorator if only options are given.

  Raises:
    ApplyError: raised on the call, if the function returns no Keras 3 model.
    TypeError: a keyword is unknown, or `function` is not callable.
  """
  where = ("cluster", "placement")
  PlanConfig.from_options({k: v for k, v in options.items() if k not in where})
  if function is None:
    return functools.partial(_decorate, options)
  if isinstance(function, keras.Model) or not callable(function):
    raise TypeError(
      "placed() decorates a function that builds a model, not"
      f" {function!r:.60}; place_model(model) places a model"
    )
  return _decorate(options, function)


def _decorate(
  options: PlaceOptions, function: Callable[P, ModelT]
) -> Callable[P, ModelT]:
  @functools.wraps(function)
  def build(*args: P.args, **kwargs: P.kwargs) -> ModelT:
    with variables.built_on_host():
      model = function(*args, **kwargs)
    _check_model(model)
    variables.keep_building_on_host(model)
    return place_model(model, **options)

  return build

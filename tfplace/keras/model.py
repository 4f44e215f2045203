"""`place_model`, `plan_model` and `placed`: what users call on Keras 3 models.

They change the model object they are given, and nothing global: no environment
variable, no class of Keras, no setting of TensorFlow.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import keras

from tfplace.core.order import ARRIVAL
from tfplace.errors import ApplyError, ExtractionError
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.microbatches import SplitConfig, is_auto, split_step
from tfplace.keras import given, planning, state
from tfplace.keras.controller import Controller, Planner, controller_of
from tfplace.keras.given import PlanLike
from tfplace.plan.clusters import ClusterLike
from tfplace.plan.plan import AppliedPlacement

_logger = logging.getLogger("tfplace")

P = ParamSpec("P")
ModelT = TypeVar("ModelT", bound=keras.Model)


def place_model(
  model: ModelT,
  cluster: ClusterLike | None = None,
  strategy: str = "auto",
  batch_size: int | None = None,
  budget_s: float = 30.0,
  seed: int = 0,
  placement: PlanLike | None = None,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[str | Sequence[str]] = (),
  verbose: str | int = "auto",
  costs: str | None = None,
  microbatches: int | str = 1,
  max_in_flight: int | None = None,
  allow_batch_statistics: bool = False,
  order: str = ARRIVAL,
  check: bool = True,
) -> ModelT:
  """Places a Keras 3 model's ops and variables on devices.

  The very model is changed and returned. It keeps weights, optimizer state and
  `compile`, and gains `model.placement` (an `AppliedPlacement`, None while the
  plan is awaited) and `model.placement_scope()` for a GradientTape loop. What
  planning lacks (loss, optimizer, shapes) it takes at the first fit. Where
  "auto" finds nothing that beats one device, the model is left as it was; a
  strategy that is named is applied whatever it costs, which the message says.

  Args:
    model: a Keras 3 model on the TensorFlow backend.
    cluster: a `Cluster`, a preset or the path of a file, of this process's
      devices. None: its GPUs and CPU:0, or without GPUs its CPU devices.
    strategy: name of a placer; `seed` fixes its random choices.
    batch_size: to plan for; None: that of the model's inputs or the first fit.
    budget_s: seconds of the search.
    placement: to apply, instead of planning: what `plan_model` gave, a
      `Placement`, a file, or a mapping from ops or layers to devices.
    max_memory: device -> bytes, or text such as "10GiB", that it may fill.
    keep_together: layers, patterns such as "block_1_*", or lists of these.
    verbose: 1 prints the stages of planning; "auto": on a terminal.
    costs: "measured" runs the step for a few seconds, beside the model, which
      it does not change; "estimated", or the name of a cost model. None
      measures where `cluster` is None.
    microbatches: number of microbatches of the training step;
      "auto" chooses it with the placement.
    max_in_flight: microbatches under way at once; None: all.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch.
    order: in which devices take their ready ops: as they become ready
      ("arrival"), by "rank", or "auto": rank where that gains at least 3% or
      fits where arrival does not.
    check: runs a microbatched step once beside the whole step, on this host,
      and compares loss, metrics and updates; False leaves that out.

  Raises:
    ApplyError: model, devices and placement do not fit each other.
    TfplaceError: a bad argument, a step that cannot be split, or nothing fits.
  """
  _check_model(model)
  state.check_not_eager(model)
  split = _split(model, microbatches, max_in_flight, allow_batch_statistics)
  if placement is None:
    request = planning.make_request(
      cluster, strategy, batch_size, budget_s, seed, max_memory, keep_together,
      verbose, costs, split=split, chooses_split=is_auto(microbatches),
      order=order, check=check,
    )  # fmt: skip
    planner = planning.searching(model, request)
  else:
    _check_nothing_to_plan(
      max_memory=max_memory, keep_together=keep_together, costs=costs
    )
    chooses = is_auto(microbatches)
    _check_nothing_to_plan(**{"microbatches='auto'": chooses})
    _check_nothing_to_plan(**{f"order={order!r:.60}": order != ARRIVAL})
    planner = given.given(placement, model, split)
  return _planned(model, planner, placement is not None, batch_size)


def plan_model(
  model: keras.Model,
  cluster: ClusterLike | None = None,
  strategy: str = "auto",
  batch_size: int | None = None,
  budget_s: float = 30.0,
  seed: int = 0,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[str | Sequence[str]] = (),
  sample: Any = None,
  verbose: str | int = "auto",
  costs: str | None = None,
  microbatches: int | str = 1,
  max_in_flight: int | None = None,
  allow_batch_statistics: bool = False,
  order: str = ARRIVAL,
  init_placement: PlanLike | None = None,
  check: bool = True,
) -> AppliedPlacement:
  """Plans as `place_model` would, and leaves the model where it is.

  Args:
    model: compiled: its training step is planned; else its inference. It is
      built, optimizer included, if it was not.
    cluster: as `place_model`'s, like the other arguments of the same names;
      but this process needs no such devices ("v100x2"). What is planned so can
      be applied where they are.
    strategy: name of a placer.
    batch_size: of the step; the sample's, or else 32.
    budget_s: seconds for proof and search, as `place_model`'s.
    seed: fixes the search's random choices.
    max_memory: device -> bytes or text such as "10GiB".
    keep_together: layers or patterns that get one device each.
    sample: a batch `x`, `(x, y)` or `(x, y, sample_weight)`; needed where the
      model does not say its shapes.
    verbose: as `place_model`'s.
    costs: as `place_model`'s.
    microbatches: as `place_model`'s.
    max_in_flight: as `place_model`'s.
    allow_batch_statistics: as `place_model`'s.
    order: as `place_model`'s.
    init_placement: an earlier plan, such as `place_model` takes for
      `placement`, to start the search from; what it says of devices or ops
      that are gone is carried over to others. Not with microbatches="auto".
    check: as `place_model`'s.

  Returns:
    The plan, for `place_model(model, placement=plan)`, now or later.

  Raises:
    ExtractionError: the shapes are unknown, and no sample says them; or the
      step cannot be split.
    TfplaceError: as `place_model`.
  """
  _check_model(model)
  split = _split(model, microbatches, max_in_flight, allow_batch_statistics)
  if not (model.compiled or split.is_whole):
    raise ExtractionError(
      f"microbatches is {microbatches}, and model {model.name!r} is not"
      " compiled: only a training step is split"
    )
  if init_placement is not None and is_auto(microbatches):
    raise ApplyError(
      "init_placement is of one split of the step: give its number of"
      " microbatches instead of microbatches='auto'"
    )
  request = planning.make_request(
    cluster, strategy, batch_size, budget_s, seed, max_memory, keep_together,
    verbose, costs, is_what_if=True, split=split,
    chooses_split=is_auto(microbatches), order=order,
    init_placement=init_placement, check=check,
  )  # fmt: skip
  planner = planning.searching(model, request)
  return planner("train" if model.compiled else "predict", sample)[1]


def _split(
  model: keras.Model,
  microbatches: int | str,
  max_in_flight: int | None,
  allow_batch_statistics: bool,
) -> SplitConfig:
  """How the step is to be split; what is to be chosen is left whole.

  Raises:
    ExtractionError: as far as is known by now, it cannot be; says why.
  """
  count: Any = 1 if is_auto(microbatches) else microbatches
  split = SplitConfig(count, max_in_flight, allow_batch_statistics)
  split.check()
  if model.compiled and not split.is_whole:
    split_step.check_splits(model, split)
  return split


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


def _planned(
  model: ModelT, planner: Planner, is_given: bool, batch_size: int | None
) -> ModelT:
  """The model with a new controller, which plans now if all is known."""
  previous = controller_of(model)
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

      @tfplace.placed
      def build(): ...

      @tfplace.placed(strategy="m_etf", budget_s=10)
      def build(): ...

  Args:
    function: builds and returns a Keras model.
    **options: the keywords of `place_model`.

  Raises:
    ApplyError: when called, if the function returns no Keras 3 model.
    TypeError: an unknown keyword, or no function.
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
    return place_model(function(*args, **kwargs), **options)

  return build

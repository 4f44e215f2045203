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

from tfplace.errors import ApplyError, ExtractionError
from tfplace.extraction import keras_inputs as inputs
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
) -> ModelT:
  """Places a Keras 3 model's ops and variables on devices.

  The very model is changed and returned: weights, optimizer state and
  `compile` are kept, and `compile`, `fit`, `evaluate`, `predict` and `save` go
  on working; what is saved loads as an ordinary, unplaced model. `jit_compile`
  is off, now and after a later `compile`, since XLA would put the whole step on
  one device; the message says so where it was on. XLA's auto-clustering
  (`tf.config.optimizer.set_jit`) works beside a placement.
  Functions of your own that were traced before hold the old variables.

  The plan is made here where loss, optimizer and shapes are known, else at the
  first fit, with the first batch's shapes. Where no placement found beats one
  device, the model is left on it, as it was. The model gains

  - `model.placement`: an `AppliedPlacement` to read, None while the plan is
    awaited;
  - `model.placement_scope()`: a context that places what is traced inside it,
    for the step of a custom GradientTape loop.

  Args:
    model: a Keras 3 model on the TensorFlow backend.
    cluster: what to plan for: a `Cluster`, the name of a preset or the path of
      a file; its devices are this process's. None is the process's logical
      devices: its GPUs, with CPU:0 beside them for what has no GPU kernel, or
      without any GPU its CPU devices.
    strategy: name of a placer.
    batch_size: to plan for. None plans for the batch of the first fit, unless
      the model's own inputs have a static batch size.
    budget_s: seconds for the proof of how fast a step can be at best (a
      quarter at most) and the search. Tracing and costing the step come
      before, and compiling the placers, once per installation;
      `model.placement.seconds` has the time of each.
    seed: fixes the search's random choices.
    placement: skips planning: what `plan_model` or `model.placement` of the
      same model gave, a `Placement`, the path of a placement file, or a
      mapping from op names, or from layer names, to devices ("CPU:1" will
      do). Ops that it lacks go where what is around them goes.
    max_memory: device -> bytes, or text such as "10GiB", that planning may
      fill, in place of what the cluster says.
    keep_together: each item is the name of a layer, a pattern such as
      "block_1_*" (of layers, or where none is like it, of ops), or a list of
      these; what an item names gets one device. Slots are beside their
      variables anyway.
    verbose: 1 prints the stages of planning, 0 logs only what takes long;
      "auto" is 1 on a terminal and in a notebook.

  Raises:
    ApplyError: no Keras 3 model, or an empty one, one that runs eagerly
      (`run_eagerly=True`; also at `fit`, where it is compiled so later), a
      device that this process does not have, a placement that names what the
      model lacks, or a placement together with constraints for planning.
    TfplaceError: an unknown strategy or cluster, a bad budget or memory size;
      as the placers do, such as `InfeasibleError` where nothing fits.
  """
  _check_model(model)
  state.check_not_eager(model)
  if placement is None:
    planner = planning.searching(
      model,
      cluster,
      strategy=strategy,
      batch_size=batch_size,
      budget_s=budget_s,
      seed=seed,
      max_memory=max_memory,
      keep_together=keep_together,
      verbose=verbose,
    )
  else:
    _check_nothing_to_plan(max_memory, keep_together)
    planner = given.given(placement, model)
  controller = _attached(model, planner)
  if placement is not None:
    controller.plan_now("train")
  elif batch_size or inputs.static_batch_size(model):
    _plan_if_known(controller, model)
  return model


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

  Returns:
    The plan, for `place_model(model, placement=plan)`, now or later.

  Raises:
    ExtractionError: the shapes are unknown, and no sample says them.
    TfplaceError: as `place_model`.
  """
  _check_model(model)
  planner = planning.searching(
    model,
    cluster,
    is_what_if=True,
    strategy=strategy,
    batch_size=batch_size,
    budget_s=budget_s,
    seed=seed,
    max_memory=max_memory,
    keep_together=keep_together,
    verbose=verbose,
  )
  return planner("train" if model.compiled else "predict", sample)[1]


def _check_nothing_to_plan(max_memory: Any, keep_together: Any) -> None:
  for name, value in (
    ("max_memory", max_memory),
    ("keep_together", keep_together),
  ):
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


def _attached(model: keras.Model, planner: Planner) -> Controller:
  """A controller of the model, in place of the one that it may have."""
  previous = controller_of(model)
  if previous is not None:
    previous.detach()
  return Controller(model, planner)


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

"""`place_model`: puts the ops and variables of a Keras 3 model on devices.

It changes the model object it is given, and nothing global: no environment
variable, no class of Keras, no setting of TensorFlow.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import keras

from tfplace.apply import plan as plan_lib
from tfplace.apply import planners
from tfplace.apply.controller import Controller, controller_of
from tfplace.errors import ApplyError, ExtractionError
from tfplace.graph.cluster import Cluster
from tfplace.graph.placement import Placement

_logger = logging.getLogger("tfplace")

ModelT = TypeVar("ModelT", bound=keras.Model)


def place_model(
  model: ModelT,
  cluster: Cluster | str | None = None,
  strategy: str = "auto",
  batch_size: int | None = None,
  budget_s: float = 30.0,
  seed: int = 0,
  placement: Placement
  | Mapping[str, str]
  | str
  | os.PathLike[str]
  | None = None,
) -> ModelT:
  """Places a Keras 3 model's ops and variables on devices.

  The very model is changed and returned: weights, optimizer state and
  `compile` are kept, and `compile`, `fit`, `evaluate`, `predict` and `save` go
  on working; what is saved loads as an ordinary, unplaced model. XLA is off,
  now and after a later `compile`, since it would put the step on one device.
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
    cluster: what to plan for: a `Cluster`, the name of a preset or a file;
      its devices are this process's. None is the process's logical devices:
      its GPUs, with CPU:0 beside them for what has no GPU kernel, or without
      any GPU its CPU devices.
    strategy: name of a placer.
    batch_size: to plan for. None plans for the batch of the first fit, unless
      the model's own inputs have a static batch size.
    budget_s: seconds that the search may take.
    seed: fixes the search's random choices.
    placement: skips planning: a `Placement`, the path of a placement file, or
      a mapping from op names, or from layer names, to devices ("CPU:1" will
      do). Ops that it lacks go where what is around them goes.

  Raises:
    ApplyError: no Keras 3 model, or a device that this process does not have.
    TfplaceError: an unknown strategy or cluster, a bad budget; as the placers
      do, such as `InfeasibleError` where nothing fits in memory.
  """
  _check_model(model)
  if placement is not None:
    planner = planners.given(plan_lib.make_plan(placement, model))
  else:
    planner = planners.searching(
      model, cluster, strategy, batch_size, budget_s, seed
    )
  previous = controller_of(model)
  if previous is not None:
    previous.detach()
  controller = Controller(model, planner)
  if placement is not None:
    controller.plan_now(True)
  elif batch_size is not None or _static_batch_size(model) is not None:
    _plan_if_known(controller, model)
  return model


def _check_model(model: Any) -> None:
  if not isinstance(model, keras.Model):
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise ApplyError(f"only a Keras 3 model can be placed, not a {kind}")
  if keras.backend.backend() != "tensorflow":
    raise ApplyError(
      f"model {model.name!r} is on Keras backend"
      f" {keras.backend.backend()!r}; only 'tensorflow' has placements"
    )
  if getattr(model, "_distribute_strategy", None) is not None:
    raise ApplyError(
      f"model {model.name!r} belongs to a tf.distribute strategy, which"
      " places it already"
    )


def _static_batch_size(model: keras.Model) -> int | None:
  inputs = getattr(model, "inputs", None) or ()
  sizes = {tensor.shape[0] for tensor in inputs if len(tensor.shape)}
  return sizes.pop() if len(sizes) == 1 else None


def _plan_if_known(controller: Controller, model: keras.Model) -> None:
  if not (model.built and model.compiled):
    return
  try:
    controller.plan_now(True)
  except ExtractionError as error:
    _logger.info("model %r is planned at its first fit: %s", model.name, error)

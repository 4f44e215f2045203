"""Controller that `place_model` attaches to a model.

The controller wraps the model's three step functions as instance attributes;
the class of the model stays unchanged. Every trace of a wrapped step finds the
variables on their devices and a device function on the graph.
"""

import contextlib
import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import custom_gradients
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.keras import devices, state, units
from tfplace.keras.devices import DeviceFunction
from tfplace.keras.given_placement import (
  check_layers,
  check_ops,
  stays,
  with_full_names,
)
from tfplace.keras.state import KINDS
from tfplace.keras.trial import Trial
from tfplace.keras.variables import PlacedVariables, built_with
from tfplace.plan.plan import Plan
from tfplace.variants import fused_norm, op_order
from tfplace.variants.microbatches import microbatched_step
from tfplace.variants.recompute import recompute

_logger = logging.getLogger("tfplace")

_STEPS = tuple(f"{kind}_step" for kind in KINDS)
_ATTRIBUTE = "_tfplace_controller"
_ONE_DEVICE = "No jit_compile: XLA would put all ops on one device."
_MERGED = "No jit_compile: XLA would merge activations with their clones."

# Plans a step of one of `KINDS` on a batch in the form that the step takes, or
# None, and of the size that `fit` was told, or None.
Planner: TypeAlias = Callable[[str, Any, int | None], Plan]


class Controller:
  """Controller that keeps a model placed through compile, fit and save.

  Attributes:
    plan: the plan in force, `model.placement`. None before planning.
    trial: trials of other plans.
  """

  def __init__(
    self, model: keras.Model, planner: Planner | None = None
  ) -> None:
    """Attaches to `model`; without a planner, its plan is a given one."""
    self.plan: Plan | None = None
    self._model = model
    self._planner = planner
    self.trial = Trial(model, self.replace_plan)
    self._variables = PlacedVariables(model)
    self._batch_size: int | None = None  # Given to the running `fit`.
    self._busy = False
    self._logged: set[str] = set()
    self._steps = {k: getattr(model, f"{k}_step") for k in KINDS}
    self._own = {n: v for n, v in vars(model).items() if n in (*_STEPS, "fit")}
    self._jit = state.JitSwitch(model)
    for kind in KINDS:
      setattr(model, f"{kind}_step", self._wrapped(kind))
    model.placement = None
    model.placement_scope = self.placement_scope
    setattr(model, _ATTRIBUTE, self)
    tell = functools.partial(setattr, self, "_batch_size")
    model.fit = self.trial.guarded(state.telling_batch_size(model.fit, tell))
    state.reset_functions(model)

  @property
  def _devices(self) -> Plan | None:
    """Plan in force, or None if the model stays on one device."""
    return None if self.plan is None or stays(self.plan) else self.plan

  def detach(self) -> None:
    """Restores the model's own steps; variables stay on their devices."""
    for name in (*_STEPS, "fit", "placement", "placement_scope", _ATTRIBUTE):
      delattr(self._model, name)
    for name, step in self._own.items():  # Steps that the user set.
      setattr(self._model, name, step)
    self._jit.detach()
    state.reset_functions(self._model)

  def _wrapped(self, kind: str) -> Callable[[Any], Any]:
    def placed_step(data: Any) -> Any:
      try:
        return self._run(kind, data)
      except Exception:
        # A function must not create variables in a second trace.
        if not self._busy:
          state.reset_functions(self._model)
        raise

    placed_step.__name__ = f"{kind}_step"
    placed_step.__wrapped__ = self._steps[kind]  # type: ignore[attr-defined]
    return placed_step

  @custom_gradients.released_with_graphs()
  def _run(self, kind: str, data: Any) -> Any:
    if self._busy:  # The planner traces the model's own step.
      return self._steps[kind](data)
    is_own = (
      self.plan is not None
      and self._devices is None
      and self.plan.variant.is_whole
      and self.plan.variant.recompute.is_none
    )
    if tf.executing_eagerly() and not is_own:
      state.check_not_eager(self._model, self.plan is not None)
    with tf.init_scope():
      self._prepare(kind, data)
    with self._device_scope() as device_function:
      result = self._step(kind)(data)
    if device_function is not None:
      if kind == "train" and self._planner is None:
        check_ops(device_function, self._model)
      result = self._in_units(result, device_function, kind == "train")
    self._variables.settle()
    return result

  def _in_units(
    self, result: Any, device_function: DeviceFunction, keeps_order: bool
  ) -> Any:
    """Compiles the units of the traced step, and imposes the op order.

    Returns:
      The step's result, as the compiled units compute it.
    """
    planned = self._devices
    assert planned is not None
    calls: dict[tf.Operation, list[tf.Operation]] = {}
    if units.compiles(planned, self._jit.wanted):
      result, calls, note = units.compile_units(
        result, device_function, self._model, planned, self._jit.wanted
      )
      if note:
        self._note(note)
    if keeps_order and planned.turns:
      op_order.chain_calls(
        tf.compat.v1.get_default_graph(),
        calls,
        lambda op: planned.turn_of_op(op.name, op.type),
      )
    return result

  def _note(self, text: str) -> None:
    """Adds a note to the plan in force, and logs it once."""
    assert self.plan is not None
    if text not in self._logged:
      _logger.warning("model %r: %s", self._model.name, text)
      self._logged.add(text)
    if text not in self.plan.notes:
      plan = dataclasses.replace(self.plan, notes=(*self.plan.notes, text))
      self._model.placement = self.plan = plan

  def _step(self, kind: str) -> Callable[[Any], Any]:
    """Returns the step to run, as the plan has it."""
    step = self._steps[kind]
    if kind != "train" or self.plan is None:
      return step
    is_fused = fused_norm.is_named(self.plan.ops)
    step = self._variant(step, self.plan.variant)
    return fused_norm.fused(self._model)(step) if is_fused else step

  def _variant(
    self, step: Callable[[Any], Any], microbatches: VariantConfig
  ) -> Callable[[Any], Any]:
    """Returns a training step, microbatched if the plan says so."""
    if microbatches == WHOLE:
      return step
    if microbatches.is_whole:
      return recompute.rewritten(self._model, microbatches, step)
    return lambda data: microbatched_step.microbatched_train_step(
      self._model, data, microbatches, step
    )[0]

  def plan_now(self, kind: str, data: Any = None) -> None:
    """Plans the step `kind` and moves the variables that the plan names.

    Raises:
      ExtractionError: shapes, loss or optimizer are unknown.
      TfplaceError: the planner fails.
    """
    if self._planner is not None:
      self.put_in_force(self._planner(kind, data, self._batch_size))

  def put_in_force(self, plan: Plan) -> None:
    """Moves the variables that a plan names, whose steps are traced next.

    Raises:
      ApplyError: this process lacks a device of the plan.
    """
    plan = plan if stays(plan) else with_full_names(plan)
    self._model.placement = self.plan = plan
    recomputes = not plan.variant.recompute.is_none
    why_no_jit = _MERGED if recomputes else ""
    is_placed = not stays(plan)
    if is_placed:
      compiles = units.compiles(plan, self._jit.wanted)
      why_no_jit = "" if compiles else _ONE_DEVICE
    if why_no_jit and self._jit.wanted and self._model.compiled:
      self._note(why_no_jit)
    self._variables.unsettle()
    if recomputes or is_placed:
      self._jit.forbid()
    else:
      self._jit.allow()
    if is_placed:
      self._variables.move(devices.variable_devices(self._model, plan))
    else:
      self._variables.leave_host()
      self._variables.go_home()

  def replace_plan(self, plan: Plan) -> None:
    """Puts another plan in force between two steps, also during `fit`.

    Variables keep their values. All functions are traced again.
    """
    with state.functions_renewed(self._model):
      gc.collect()  # Their graphs are cycles that hold the variables' memory.
      self.put_in_force(plan)

  def _prepare(self, kind: str, data: Any) -> None:
    """Builds and places the model before a trace of step `kind` on `data`."""
    with self.own_steps():
      state.build(self._model, kind, self._steps[kind], data)
    if self._devices is not None:
      check_layers(self._devices, self._model)
    if self.plan is None:
      self._plan_first(kind, data)
    elif kind == "train" and self._planner and not self.plan.training:
      self.plan_now(kind, data)
      # Functions traced for the previous plan hold variables that have moved.
      state.reset_functions(self._model, besides=kind)
    if self._devices is None or self._variables.are_settled:
      return
    with self.own_steps():
      by_variable = devices.variable_devices(
        self._model,
        self._devices,
        lambda: state.traced(self._steps[kind], data),
      )
    self._variables.move(by_variable)
    self._variables.leave_host()
    self._variables.settle()

  def _plan_first(self, kind: str, data: Any) -> None:
    """Plans the training step if the batch determines it, else step `kind`.

    The batch of a custom step is valid only for that step.
    """
    is_custom = state.has_custom_step(self._model, kind)
    if kind != "train" and self._model.compiled and not is_custom:
      try:
        self.plan_now("train", data)
        return
      except ExtractionError as error:
        _logger.info(
          "model %r: %s; its %s step is planned first",
          self._model.name,
          error,
          kind,
        )
    self.plan_now(kind, data)

  @contextlib.contextmanager
  def own_steps(self) -> Iterator[None]:
    """Restores the model's own step functions inside the context."""
    before, self._busy = self._busy, True
    try:
      with _planned_with(self._model, self.plan is None):
        yield
    finally:
      self._busy = before

  @contextlib.contextmanager
  def _device_scope(self) -> Iterator[DeviceFunction | None]:
    if self._devices is None or tf.executing_eagerly():
      yield None
      return
    device_function = DeviceFunction(self._devices)
    with tf.compat.v1.get_default_graph().device(device_function):
      yield device_function

  @contextlib.contextmanager
  def placement_scope(self) -> Iterator[None]:
    """Places the ops of custom training loops that are traced inside.

    Enter the scope inside the `tf.function` of the step, around the forward
    pass, the gradients and the update. If it is entered outside, it places the
    ops of functions traced inside it, from their first call of the model on.
    TensorFlow places eager ops, next to the placed variables.

    Raises:
      ExtractionError: planning is pending and the input shapes are unknown.
        Build the model first.
    """
    with tf.init_scope():
      if self.plan is None:
        self.plan_now("train" if self._model.compiled else "predict")
      elif self._devices is not None and self._model.built:
        check_layers(self._devices, self._model)
      self._variables.leave_host()
      self._variables.settle()
    if self._devices is None:
      yield
    elif tf.executing_eagerly():
      with devices.on_each_call(self._model, self._place_rest_of_trace):
        yield
    else:
      with self._device_scope():
        yield

  def _place_rest_of_trace(self) -> None:
    if self._devices is not None:
      devices.place_rest_of_trace(DeviceFunction(self._devices))


def controller_of(model: keras.Model) -> Controller | None:
  """Returns the controller of a placed model, or None."""
  return vars(model).get(_ATTRIBUTE)


def apply(
  model: keras.Model, plan: Plan | None, planner: Planner | None = None
) -> None:
  """Places a model by a plan; without one, `planner` plans its first step.

  Raises:
    ApplyError: this process lacks a device of the plan.
  """
  previous = controller_of(model)
  with state.functions_renewed(model):  # A callback of `fit` may call this.
    if previous is not None:
      previous.detach()
    controller = Controller(model, planner)
    if plan is not None:
      controller.put_in_force(plan)


def own_steps(model: keras.Model) -> contextlib.AbstractContextManager[None]:
  """Restores the own step functions of a model, which may be placed."""
  controller = controller_of(model)
  if controller is None:
    return _planned_with(model, is_waiting=True)
  return controller.own_steps()


@contextlib.contextmanager
def _planned_with(model: keras.Model, is_waiting: bool) -> Iterator[None]:
  """Allows the tracing of steps, also inside `tf.init_scope`."""
  with devices.gradients_recorded(), built_with(model, is_waiting):
    yield

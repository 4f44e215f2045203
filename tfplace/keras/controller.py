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
import re
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfplace.errors import ApplyError, ExtractionError
from tfplace.extraction import custom_gradients
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.graph.microbatches import WHOLE
from tfplace.graph.op_graph import XLA
from tfplace.keras import devices, host_memory, state
from tfplace.keras.devices import DeviceFunction, check_layers
from tfplace.keras.given_placement import stays, with_full_names
from tfplace.keras.state import KINDS
from tfplace.plan import local_devices
from tfplace.plan.config import AUTO
from tfplace.plan.plan import Plan
from tfplace.variants import op_order
from tfplace.variants.microbatches import microbatched_step
from tfplace.variants.recompute import recompute
from tfplace.variants.units import calls as unit_calls
from tfplace.variants.units import forming, lowering

_logger = logging.getLogger("tfplace")

_STEPS = tuple(f"{kind}_step" for kind in KINDS)
_ATTRIBUTE = "_tfplace_controller"
# The least share of the ops of a plan's layers that the traced step must
# contain, called functions excluded. Another model shares only its loss ops.
_LEAST_FOUND = 1 / 3
_ONE_DEVICE = "No jit_compile: XLA would put all ops on one device."
_MERGED = "No jit_compile: XLA would merge activations with their clones."


# Plans a step of one of `KINDS` on a batch in the form that the step takes, or
# None.
Planner: TypeAlias = Callable[[str, Any], Plan]


class Controller:
  """Controller that keeps a model placed through compile, fit and save.

  Attributes:
    plan: the plan in force, `model.placement`. None before planning.
  """

  def __init__(
    self, model: keras.Model, planner: Planner | None = None
  ) -> None:
    """Attaches to `model`; without a planner, its plan is a given one."""
    self.plan: Plan | None = None
    self._model = model
    self._planner = planner
    self._settled: dict[int, Any] = {}  # The variables in their final place.
    self._moved: dict[int, Any] = {}  # The variables that a plan moved.
    self._busy = False
    self._steps = {k: getattr(model, f"{k}_step") for k in KINDS}
    self._own = {n: v for n, v in vars(model).items() if n in (*_STEPS, "fit")}
    self._jit = state.JitSwitch(model)
    self._previous: Plan | None = None  # The plan before a trial.
    self._attach()

  @property
  def _devices(self) -> Plan | None:
    """Plan in force, or None if the model stays on one device."""
    return None if self.plan is None or stays(self.plan) else self.plan

  def _attach(self) -> None:
    model = self._model
    for kind in KINDS:
      setattr(model, f"{kind}_step", self._wrapped(kind))
    model.placement = None
    model.placement_scope = self.placement_scope
    setattr(model, _ATTRIBUTE, self)
    model.fit = self._guarded(model.fit)
    state.reset_functions(model)

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
      return self._run(kind, data)

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
      if kind == "train":
        self._check_used(device_function)
      result = self._in_units(result, device_function, kind == "train")
    self._settle()
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
    graph = tf.compat.v1.get_default_graph()
    calls: dict[tf.Operation, list[tf.Operation]] = {}
    if self._compiles(planned):
      device_function.place_reads(graph)
      flat = keras.tree.flatten(result)
      tensors = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
      calls, tensors, refused = unit_calls.compile_units(
        graph,
        self._unit_of(planned),
        results=tensors,
        later=op_order.program_order(graph.get_operations()),
        turn_of=planned.turns.get,
        batch_size=planned.batch_size or DEFAULT_BATCH_SIZE,
      )
      if refused:
        self._note(lowering.refusal_note(refused, self._layer_of))
      new = iter(tensors)
      result = keras.tree.pack_sequence_as(
        result,
        [next(new) if isinstance(leaf, tf.Tensor) else leaf for leaf in flat],
      )
    if keeps_order and planned.turns:
      op_order.chain_calls(
        graph, calls, lambda op: planned.turn_of_op(op.name, op.type)
      )
    return result

  def _note(self, text: str) -> None:
    """Adds a note to the plan, and logs it once."""
    assert self.plan is not None
    if text not in self.plan.notes:
      _logger.warning("model %r: %s", self._model.name, text)
      notes = (*self.plan.notes, text)
      self._model.placement = self.plan = dataclasses.replace(
        self.plan, notes=notes
      )

  def _layer_of(self, op: str) -> str:
    return forming.layer_by_name(op, state.layer_names(self._model))

  def _compiles(self, planned: Plan) -> bool:
    """Returns whether XLA compiles units of placed steps."""
    if planned.compile == AUTO:
      return self._jit.wanted
    return planned.compile == XLA

  def _unit_of(
    self, planned: Plan
  ) -> Callable[[tf.Operation], Hashable | None]:
    """Returns a function to the unit of an op, as planned or by names.

    XLA draws other random numbers than TensorFlow, so it draws them only where
    it does so for the unplaced step.
    """
    layers = state.layer_names(self._model)

    def unit_of(op: tf.Operation) -> Hashable | None:
      if forming.is_random(op.type) and not self._jit.wanted:
        return None
      if planned.units:
        return planned.unit_of_op(op.name)
      return forming.key_by_name(op.name, layers)

    return unit_of

  def _step(self, kind: str) -> Callable[[Any], Any]:
    """Returns the step to run, microbatched if the plan says so."""
    microbatches = WHOLE if self.plan is None else self.plan.variant
    own = self._steps[kind]
    if kind != "train" or microbatches == WHOLE:
      return own
    if microbatches.is_whole:
      return recompute.rewritten(self._model, microbatches, own)
    return lambda data: microbatched_step.microbatched_train_step(
      self._model, data, microbatches, own
    )[0]

  def plan_now(self, kind: str, data: Any = None) -> None:
    """Plans the step `kind` and moves the variables that the plan names.

    Raises:
      ExtractionError: shapes, loss or optimizer are unknown.
      TfplaceError: the planner fails.
    """
    if self._planner is not None:
      self.put_in_force(self._planner(kind, data))

  def put_in_force(self, plan: Plan) -> None:
    """Moves the variables that a plan names, whose steps are traced next.

    Raises:
      ApplyError: this process lacks a device of the plan.
    """
    plan = plan if stays(plan) else with_full_names(plan)
    recomputes = not plan.variant.recompute.is_none
    why_no_jit = _MERGED if recomputes else ""
    is_placed = not stays(plan)
    if is_placed:
      why_no_jit = "" if self._compiles(plan) else _ONE_DEVICE
    if why_no_jit and self._jit.is_dropped():
      if self.plan is None or why_no_jit not in self.plan.notes:
        _logger.warning("model %r: %s", self._model.name, why_no_jit)
      if why_no_jit not in plan.notes:
        plan = dataclasses.replace(plan, notes=(*plan.notes, why_no_jit))
    self._model.placement = self.plan = plan
    self._settled.clear()
    if recomputes or is_placed:
      self._jit.forbid()
    else:
      self._jit.allow()
    if is_placed:
      self._move(devices.variable_devices(self._model, plan))
    else:
      self._leave_host()
      self._go_home()

  def replace_plan(self, plan: Plan) -> None:
    """Puts another plan in force between two steps, also during `fit`.

    Variables keep their values. All functions are traced again.
    """
    with state.functions_renewed(self._model):
      gc.collect()  # Their graphs are cycles that hold the variables' memory.
      self.put_in_force(plan)
    self._previous = None

  def try_plan(
    self, plan: Plan, on_failure: Callable[[Exception], None]
  ) -> None:
    """Puts another plan in force unless its first training step fails.

    Then the previous plan and the values of all variables come back, and `fit`
    skips the batch. The values wait in host memory until that step. Unless
    `end_trial` was called, the previous plan also comes back when `fit` is
    interrupted or fails.

    Args:
      plan: plan of the training step; another one is in force.
      on_failure: called with the error of the first step.

    Raises:
      Exception: the plan cannot be put in force; the previous one is.
    """
    previous, values = self.plan, state.values(self._model)
    assert previous is not None

    def restore() -> None:
      self.replace_plan(previous)
      state.assign(values)

    try:
      self.replace_plan(plan)
    except BaseException:
      restore()
      raise
    self._previous = previous
    self._guard_first_step(restore, on_failure)

  def end_trial(self, is_kept: bool) -> None:
    """Keeps the plan in force after `try_plan`, or the previous one."""
    if self._previous is not None and not is_kept:
      self.replace_plan(self._previous)
    self._previous = None

  def _guarded(self, fit: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `fit` that takes a trial back when it fails."""

    @functools.wraps(fit)
    def guarded_fit(*args: Any, **kwargs: Any) -> Any:
      try:
        return fit(*args, **kwargs)
      except BaseException:
        self.end_trial(is_kept=False)
        raise

    return guarded_fit

  def _guard_first_step(
    self,
    restore: Callable[[], None],
    on_failure: Callable[[Exception], None],
  ) -> None:
    """Calls `restore` if the next call of the training function fails."""
    model, function = self._model, self._model.train_function
    if function is None:  # No fit is running.
      return

    def first_step(iterator: Any) -> Any:
      try:
        logs = function(iterator)
      except (StopIteration, tf.errors.OutOfRangeError):  # The data ended.
        raise
      except Exception as error:
        restore()
        on_failure(error)
        return model.get_metrics_result()  # The batch is skipped.
      except BaseException:
        restore()
        raise
      if model.train_function is first_step:
        model.train_function = function
      return logs

    model.train_function = first_step

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
    if self._devices is None or self._is_settled():
      return
    with self.own_steps():
      found = devices.variable_devices(
        self._model,
        self._devices,
        lambda: state.traced(self._steps[kind], data),
      )
    self._move(found)
    self._leave_host()
    self._settle()

  def _plan_first(self, kind: str, data: Any) -> None:
    """Plans the training step if the batch determines it, else step `kind`.

    The batch of a custom step is valid only for that step.
    """
    own = any(inputs.has_own_step(self._model, k) for k in {kind, "train"})
    if kind != "train" and self._model.compiled and not own:
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

  def _move(self, found: dict[int, str]) -> None:
    for variable in state.variables(self._model):
      device = found.get(id(variable))
      # An earlier traced function may hold the settled variables.
      if device is not None and id(variable) not in self._settled:
        state.move(variable, device)
        host_memory.stays_on_host(variable)
        self._moved[id(variable)] = self._settled[id(variable)] = variable

  def _leave_host(self) -> None:
    """Moves what waits in host memory to the default device."""
    for variable in host_memory.waiting(self._model):
      if id(variable) not in self._settled:
        state.move(variable, local_devices.default_device())
        host_memory.stays_on_host(variable)

  def _go_home(self) -> None:
    """Moves what plans have moved to the default device."""
    slots = state.slots(self._model)  # Created beside their owners.
    also = {id(slot) for slot, owner in slots if id(owner) in self._moved}
    for variable in state.variables(self._model):
      if id(variable) in self._moved or id(variable) in also:
        state.move(variable, local_devices.default_device())
    self._moved.clear()

  def _settle(self) -> None:
    for variable in state.variables(self._model):
      self._settled.setdefault(id(variable), variable)

  def _is_settled(self) -> bool:
    variables = state.variables(self._model)
    return all(id(variable) in self._settled for variable in variables)

  def _check_used(self, used: DeviceFunction) -> None:
    """Rejects a given plan of another model.

    The step that `fit` traces contains nearly all ops of a matching plan, apart
    from loss and optimizer, which may have changed. Ops of called functions are
    not visible in the graph; a plan lists them below the calling op.
    """
    planned, model = self._devices, self._model.name
    if self._planner is not None or planned is None:
      return
    operations = tf.compat.v1.get_default_graph().get_operations()
    calls = tuple(
      f"{operation.name}/"
      for operation in operations
      if operation.type in devices.LOOPS_AND_CALLS
    )
    names = [name for name in planned.ops if not name.startswith(calls)]
    in_layers = re.compile(rf"(.*/)?{re.escape(model)}(_\d+)?/")
    names = [name for name in names if in_layers.match(name)] or names
    there = {operation.name for operation in operations}
    there.update(variable.path for variable in state.variables(self._model))
    lacking = [name for name in names if name not in there]
    found = len(names) - len(lacking)
    if lacking and (not used.planned or found < _LEAST_FOUND * len(names)):
      others = f" and {len(lacking) - 1} others" if lacking[1:] else ""
      raise ApplyError(
        f"the placement names {found or 'none'} of the ops of model {model!r},"
        f" and {lacking[0]!r}{others} that it does not have: it was made for"
        " another model, or for one whose layers have other names",
        op=lacking[0],
      )

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
      self._leave_host()
      self._settle()
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


@contextlib.contextmanager
def own_steps(model: keras.Model) -> Iterator[None]:
  """Restores the own step functions of a model, which may be placed."""
  controller = controller_of(model)
  context = None if controller is None else controller.own_steps()
  with context or _planned_with(model, is_waiting=True):
    yield


@contextlib.contextmanager
def _planned_with(model: keras.Model, is_waiting: bool) -> Iterator[None]:
  """Allows the tracing of steps, also inside `tf.init_scope`."""
  with (
    devices.gradients_recorded(),
    host_memory.built_with(model, is_waiting),
  ):
    yield

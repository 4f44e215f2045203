"""Compiled partial schedule for decisions in order.

It is an estimate: the simulator runs ready ops in another order.
"""

from typing import NamedTuple

import numpy as np

from tfplace.learned.ordered import base_schedule
from tfplace.learned.ordered.tables import PartialTables
from tfplace.simulate.jit import Index, helper, inlined
from tfplace.simulate.links import arrival_us, free_us

PARTIAL = 30  # features of a decision on a device in the partial schedule
FEATURES = PARTIAL + base_schedule.NUM_FEATURES


class State(NamedTuple):
  """Partial schedule; arrays are [D] unless stated otherwise.

  Attributes:
    clock: Time at which the device is free, in microseconds.
    load: Total work assigned to the device, in microseconds.
    persistent, held: Assigned bytes; the second includes outputs.
    latest: Position of the last decision on the device, -1 for none.
    end: [num_ops] time at which outputs are available, in microseconds.
    arrived: [num_ops, D] arrival time of a copy, -1 if none was sent.
    channel: [D * D] time at which each channel is free.
    layer, micro, pair: [groups, D] assigned work in microseconds.
    last: [1 + microbatches] device of the last decision of each microbatch;
      index 0 is that of any decision.
    observed, candidates, logits: [D, FEATURES], [D], [D] of the current
      decision.
    start, finish, cut: Times of the current decision, in microseconds.
    near: [2, D] transfer times of its outputs and inputs.
    least: [4] minima of load, start, finish and cut.
    hidden, narrow: Layers of the MLP.
  """

  clock: np.ndarray
  load: np.ndarray
  persistent: np.ndarray
  held: np.ndarray
  latest: np.ndarray
  end: np.ndarray
  arrived: np.ndarray
  channel: np.ndarray
  layer: np.ndarray
  micro: np.ndarray
  pair: np.ndarray
  last: np.ndarray
  observed: np.ndarray
  candidates: np.ndarray
  logits: np.ndarray
  start: np.ndarray
  finish: np.ndarray
  cut: np.ndarray
  near: np.ndarray
  least: np.ndarray
  hidden: np.ndarray
  narrow: np.ndarray


def make_state(tables: PartialTables, wide: int, narrow: int) -> State:
  """Allocates a schedule and the layers of the MLP."""
  count, devices = tables.op_us.shape
  layers, micros, pairs = tables.groups
  clock, load, persistent, held, latest, start, finish, cut = np.zeros(
    (8, devices)
  )
  return State(
    clock=clock,
    load=load,
    persistent=persistent,
    held=held,
    latest=latest,
    end=np.zeros(count),
    arrived=np.zeros((count, devices)),
    channel=np.zeros(devices * devices),
    layer=np.zeros((layers, devices)),
    micro=np.zeros((micros, devices)),
    pair=np.zeros((pairs, devices)),
    last=np.zeros(1 + micros, np.int64),
    observed=np.zeros((devices, FEATURES), np.float32),
    candidates=np.zeros(devices, np.bool_),
    logits=np.zeros(devices, np.float32),
    start=start,
    finish=finish,
    cut=cut,
    near=np.zeros((2, devices)),
    least=np.zeros(4),
    hidden=np.zeros(wide, np.float32),
    narrow=np.zeros(narrow, np.float32),
  )


@inlined
def copy(target: np.ndarray, source: np.ndarray) -> None:
  """Copies without the allocation that `target[:] = source` can cause."""
  for i in range(len(source)):
    target[i] = source[i]


@helper
def reset(state: State) -> None:
  """Clears all decisions and transfers."""
  for part in (
    *(state.clock, state.load, state.persistent, state.held),
    *(state.end, state.channel),
  ):
    part[:] = 0.0
  state.latest[:] = -1.0
  state.arrived[:] = -1.0
  state.layer[:] = 0.0
  state.micro[:] = 0.0
  state.pair[:] = 0.0
  state.last[:] = -1


@helper
def open_devices(tables: PartialTables, state: State, decision: Index) -> None:
  """Fills in the devices to choose from."""
  some, candidates = False, state.candidates
  for device in range(len(candidates)):
    needs = state.persistent[device] + tables.persistent_bytes[decision]
    fits = needs <= tables.memory_bytes[device]
    candidates[device] = tables.allowed[decision, device] and fits
    some = some or candidates[device]
  if not some:
    copy(candidates, tables.allowed[decision])


@helper
def take(
  tables: PartialTables,
  state: State,
  device_of: np.ndarray,
  decision: Index,
  device: Index,
) -> None:
  """Assigns a decision to a device."""
  device_of[decision] = device
  work_us = tables.work_us[decision, device]
  state.load[device] += work_us
  state.persistent[device] += tables.persistent_bytes[decision]
  state.held[device] += tables.held_bytes[decision]
  state.latest[device] = tables.position[decision]
  state.layer[tables.layer[decision], device] += work_us
  state.micro[tables.micro[decision], device] += work_us
  state.pair[tables.pair[decision], device] += work_us
  state.last[0] = device
  state.last[1 + tables.micro[decision]] = device


@inlined
def arrival(
  tables: PartialTables,
  state: State,
  device_of: np.ndarray,
  op: Index,
  device: Index,
) -> float:
  """Returns the time at which the inputs of `op` could be on `device`."""
  ready = 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = device_of[tables.decision_of[producer]]
    at = state.end[producer]
    if source != device:
      if state.arrived[producer, device] >= 0:
        at = state.arrived[producer, device]
      else:
        channel = tables.links[source, device].channel
        at = max(at, state.channel[channel])
        size = tables.in_bytes[i]
        at = arrival_us(tables.links, at, size, source, device)
    ready = max(ready, at)
  return ready


@helper
def run(
  tables: PartialTables,
  state: State,
  device_of: np.ndarray,
  op: Index,
  device: Index,
) -> None:
  """Schedules an op on the device of its decision and its transfers."""
  ready = 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = device_of[tables.decision_of[producer]]
    at = state.end[producer]
    if source != device:
      if state.arrived[producer, device] < 0:
        channel = tables.links[source, device].channel
        start = max(at, state.channel[channel])
        sent = tables.links, start, tables.in_bytes[i], source, device
        state.channel[channel] = free_us(*sent)
        state.arrived[producer, device] = arrival_us(*sent)
      at = state.arrived[producer, device]
    ready = max(ready, at)
  time_us = tables.op_us[op, device]
  if time_us > 0:
    start = max(ready, state.clock[device])
    state.end[op] = start + time_us
    state.clock[device] = state.end[op] + tables.overhead_us[device]
  else:
    state.end[op] = ready

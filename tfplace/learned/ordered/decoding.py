"""Compiled decoder that makes decisions in order.

An MLP shared by all devices scores each device for the next decision, from its
features in the partial schedule. Doppler (ICLR 2026) does so op by op.
"""

from typing import NamedTuple

import numpy as np

from tfplace.learned.decisions import NEVER
from tfplace.learned.ordered.schedule import (
  FEATURES,
  PARTIAL,
  State,
  arrival,
  copy,
  make_state,
  open_devices,
  reset,
  run,
  take,
)
from tfplace.learned.ordered.tables import PartialTables
from tfplace.simulate.jit import Index, helper, inlined, kernel

_MOST = 4.0  # bound on the features
# Features of a decision on a device in the partial schedule. "Above" is the
# excess over the device with the least, in shares of the ideal work of a
# device; "here", it is in units of the decision's work, squashed by tanh.
(
  INPUT_WAIT_HERE,  # of the device for the inputs
  LOAD,  # including the decision
  LOAD_ABOVE,
  LOAD_ABOVE_HERE,
  START_ABOVE,
  START_ABOVE_HERE,
  END_ABOVE,
  END_ABOVE_HERE,
  CUT_ABOVE,  # transfers with earlier decisions on other devices
  LOG_CUT_ABOVE,
  LOG_CUT,
  SHARE_OF_LAYER,  # of the decision's layer: the work on the device
  SHARE_OF_MICROBATCH,
  SHARE_OF_PAIR,  # layer and microbatch
  MICROBATCH_OF_LOAD,
  IS_LAST_OF_MICROBATCH,  # the device of the decision before
  IS_LAST,
  SENT_SHARE,  # transfers to the device, of all outputs
  RECEIVED_SHARE,
  IS_LARGEST_NEIGHBOR,
  IS_EMPTY,
  PERSISTENT,  # bytes, over the memory
  HELD,
  LOG_SLOWDOWN_HERE,  # of the decision
  LOG_SLOWDOWN,  # of all work
  SINCE_LATEST,  # work since the last decision on the device
  IS_BASE,
  SHARE_IN_BASE,
  LOAD_IN_BASE,
  LOAD_IN_BASE_ABOVE,  # the device of the base
) = range(PARTIAL)
_LOAD, _START, _END, _CUT = range(4)  # in `State.least`


class Head(NamedTuple):
  """Weights of the MLP and its inputs for each decision.

  Attributes:
    context: [N, H] float32, added to the first layer.
    slope: [N, FEATURES] float32, linear part of the logit.
    first: [FEATURES, H] float32.
    second: [H, K] float32.
    bias: [K] float32.
    last: [K] float32.
  """

  context: np.ndarray
  slope: np.ndarray
  first: np.ndarray
  second: np.ndarray
  bias: np.ndarray
  last: np.ndarray


class Samples(NamedTuple):
  """Sampled placements and what their decisions observed.

  Attributes:
    choices: [B, N] int32 devices.
    observed: [B, N, D, FEATURES] float32; [B, 0, D, FEATURES] if not kept.
    candidates: [B, N, D] bool devices to choose from, empty like `observed`.
      These are the allowed devices with free memory, or all allowed ones if
      there are none.
    logits: [B, N, D] float32 with noise, about -1e9 for other devices; empty
      like `observed`.
  """

  choices: np.ndarray
  observed: np.ndarray
  candidates: np.ndarray
  logits: np.ndarray


def decode(
  tables: PartialTables,
  head: Head,
  noise: np.ndarray,
  forced: np.ndarray,
  *,
  keeps: bool,
) -> Samples:
  """Decodes placements one after the other.

  Args:
    noise: [B, N, D] float32 added to the logits: Gumbel noise to sample, 0 for
      the most probable choices.
    forced: [B, N] int32 devices to choose regardless of the logits, -1 for
      none.
    keeps: True to return what the decisions observed.
  """
  number, count, devices = noise.shape
  rows = count if keeps else 0
  samples = Samples(
    np.full((number, count), -1, np.int32),
    np.zeros((number, rows, devices, FEATURES), np.float32),
    np.zeros((number, rows, devices), np.bool_),
    np.zeros((number, rows, devices), np.float32),
  )
  _decode(
    tables,
    head,
    noise,
    forced,
    samples,
    make_state(tables, head.first.shape[1], len(head.bias)),
  )
  return samples


@kernel
def _decode(
  tables: PartialTables,
  head: Head,
  noise: np.ndarray,
  forced: np.ndarray,
  samples: Samples,
  state: State,
) -> None:
  for row in range(len(noise)):
    device_of = samples.choices[row]
    reset(state)
    for op in tables.order:
      decision = np.int64(tables.decision_of[op])
      if device_of[decision] < 0:
        best: Index = np.int64(forced[row, decision])
        keeps = samples.observed.shape[1] > 0
        if keeps or best < 0:  # Others need not look.
          open_devices(tables, state, decision)
          if best >= 0:
            state.candidates[best] = True
          _look(tables, state, device_of, decision, op)
          likely = _score(head, state, decision, noise[row, decision])
          best = likely if best < 0 else best
        if keeps:
          copy(samples.logits[row, decision], state.logits)
          for device in range(len(state.candidates)):
            copy(
              samples.observed[row, decision, device], state.observed[device]
            )
          copy(samples.candidates[row, decision], state.candidates)
        take(tables, state, device_of, decision, best)
      run(tables, state, device_of, op, np.int64(device_of[decision]))


@helper
def _look(
  tables: PartialTables,
  state: State,
  device_of: np.ndarray,
  decision: Index,
  op: Index,
) -> None:
  """Fills in [D, FEATURES] features, relative to the best device."""
  observed, candidates, least = state.observed, state.candidates, state.least
  start, end, cut = state.start, state.finish, state.cut
  devices = len(candidates)
  observed[:] = 0.0
  least[:] = np.inf
  here_us = max(tables.fastest_us[decision], 0.01 * tables.mean_us)
  _traffic(tables, state, device_of, decision)
  for device in range(devices):
    if not candidates[device]:
      continue
    ready = arrival(tables, state, device_of, op, device)
    start[device] = max(ready, state.clock[device])
    end[device] = start[device] + tables.work_us[decision, device]
    least[_LOAD] = min(least[_LOAD], state.load[device])
    least[_START] = min(least[_START], start[device])
    least[_END] = min(least[_END], end[device])
    least[_CUT] = min(least[_CUT], cut[device])
    wait = ready - state.clock[device]
    observed[device, INPUT_WAIT_HERE] = np.tanh(wait / here_us)
  for device in range(devices):
    if candidates[device]:
      _relate(tables, state, decision, device, here_us)


@inlined
def _compare(
  row: np.ndarray, at: int, excess: float, ideal_us: float, here_us: float
) -> None:
  """Fills in an excess over the least: `at` "above", then "above here"."""
  row[at] = excess / ideal_us
  row[at + 1] = np.tanh(excess / here_us)


@helper
def _relate(
  tables: PartialTables,
  state: State,
  decision: Index,
  device: Index,
  here_us: float,
) -> None:
  """Fills in the features of a device, but for those of `_look`."""
  row, least = state.observed[device], state.least
  load, cut = state.load[device], state.cut[device]
  work_us, ideal_us = tables.work_us[decision, device], tables.ideal_us
  row[LOAD] = (load + work_us) / ideal_us
  _compare(row, LOAD_ABOVE, load - least[_LOAD], ideal_us, here_us)
  late = state.start[device] - least[_START]
  _compare(row, START_ABOVE, late, ideal_us, here_us)
  late = state.finish[device] - least[_END]
  _compare(row, END_ABOVE, late, ideal_us, here_us)
  row[CUT_ABOVE] = (cut - least[_CUT]) / ideal_us
  row[LOG_CUT] = np.log1p(cut / here_us)
  row[LOG_CUT_ABOVE] = np.log1p(cut / here_us) - np.log1p(least[_CUT] / here_us)
  _relate_kin(tables, state, decision, device, row)
  row[IS_EMPTY] = load <= 0.0
  memory = max(tables.memory_bytes[device], 1.0)
  persistent = state.persistent[device] + tables.persistent_bytes[decision]
  row[PERSISTENT] = persistent / memory
  row[HELD] = (state.held[device] + tables.held_bytes[decision]) / memory
  fastest_us = max(tables.fastest_us[decision], 1e-9)
  row[LOG_SLOWDOWN_HERE] = np.log(max(work_us, 1e-9) / fastest_us)
  row[LOG_SLOWDOWN] = tables.slower[device]
  row[SINCE_LATEST] = 1.0
  if state.latest[device] >= 0.0:
    row[SINCE_LATEST] = tables.position[decision] - state.latest[device]
  base = tables.base[decision]
  if base >= 0:
    base_load = tables.base_loads[device]
    row[IS_BASE] = base == device
    row[SHARE_IN_BASE] = tables.base_shares[decision, device]
    row[LOAD_IN_BASE] = base_load
    row[LOAD_IN_BASE_ABOVE] = base_load - tables.base_loads[base]
  copy(row[PARTIAL:], tables.scheduled[decision, device])
  for i in range(FEATURES):
    row[i] = min(max(row[i], -_MOST), _MOST)


@helper
def _traffic(
  tables: PartialTables, state: State, device_of: np.ndarray, decision: Index
) -> None:
  """Fills in traffic with earlier decisions, per device."""
  near, cut, observed = state.near, state.cut, state.observed
  near[:] = 0.0
  inputs = outputs = 1e-9
  decided = most = 0.0
  largest = np.int64(-1)
  offsets = tables.near_offsets
  for i in range(offsets[decision], offsets[decision + 1]):
    other, us = tables.near[i], tables.near_us[i]
    sends = other >= 0
    if not sends:
      other = -1 - other
    if sends:
      outputs += us
    else:
      inputs += us
    where = np.int64(device_of[other])
    if where >= 0:
      near[0 if sends else 1, where] += us
      decided += us
      if us > most:
        largest, most = where, us
  for device in range(len(cut)):
    cut[device] = decided - near[0, device] - near[1, device]
    observed[device, SENT_SHARE] = near[0, device] / outputs
    observed[device, RECEIVED_SHARE] = near[1, device] / inputs
    observed[device, IS_LARGEST_NEIGHBOR] = device == largest


@inlined
def _total(values: np.ndarray) -> float:
  """Returns the sum, slightly above 0."""
  result = 1e-9
  for value in values:
    result += value
  return result


@inlined
def _relate_kin(
  tables: PartialTables,
  state: State,
  decision: Index,
  device: Index,
  row: np.ndarray,
) -> None:
  """Fills in the devices of the decision's layer and microbatch."""
  micro = tables.micro[decision]
  layers = state.layer[tables.layer[decision]]
  micros = state.micro[micro]
  pairs = state.pair[tables.pair[decision]]
  row[SHARE_OF_LAYER] = layers[device] / _total(layers)
  row[SHARE_OF_MICROBATCH] = micros[device] / _total(micros)
  row[SHARE_OF_PAIR] = pairs[device] / _total(pairs)
  load = max(state.load[device], 1e-9)
  row[MICROBATCH_OF_LOAD] = micros[device] / load
  row[IS_LAST_OF_MICROBATCH] = state.last[1 + micro] == device
  row[IS_LAST] = state.last[0] == device


@helper
def _score(
  head: Head, state: State, decision: Index, noise: np.ndarray
) -> Index:
  hidden, narrow, logits = state.hidden, state.narrow, state.logits
  best: Index = np.int64(0)
  for device in range(len(noise)):
    logits[device] = NEVER
    if state.candidates[device]:
      copy(hidden, head.context[decision])
      copy(narrow, head.bias)
      logits[device] = noise[device]
      for i in range(FEATURES):
        value = state.observed[device, i]
        logits[device] += value * head.slope[decision, i]
        for j in range(len(hidden)):
          hidden[j] += value * head.first[i, j]
      for i in range(len(hidden)):
        value = max(hidden[i], np.float32(0.0))
        for j in range(len(narrow)):
          narrow[j] += value * head.second[i, j]
      for j in range(len(narrow)):
        logits[device] += max(narrow[j], np.float32(0.0)) * head.last[j]
    if logits[device] > logits[best]:
      best = np.int64(device)
  return best

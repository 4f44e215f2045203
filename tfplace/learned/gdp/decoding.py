"""Decides in order, seeing the partial schedule: compiled, without TensorFlow.

Whenever the first op of a decision comes, each device that may run it is scored
by a small perceptron, which all devices share, so that devices stay
interchangeable and any number works. It sees `SEEN` numbers of the decision on
the device, and of the decision what the graph network made of it. Then the op
is scheduled where its decision is: when its inputs have arrived (transfers
queue on their channels) and the device is free. (Doppler, ICLR 2026, decides
likewise, op by op; that decisions are clusters is ours.)
"""

from typing import NamedTuple

import numpy as np

from tfplace.learned.gdp.partial import PartialTables
from tfplace.simulate.jit import (
  Index,
  allocating,
  allocating_helper,
  allocating_inlined,
)
from tfplace.simulate.links import arrival_us, free_us

SEEN = 26  # numbers of a decision on a device
NEVER = np.float32(-1e9)  # logit of a device that may not run the decision
SLOWER = 24  # of these, log of how much slower the device is at the work
_MOST = 4.0  # bound of what is seen


class Head(NamedTuple):
  """The perceptron's weights, and what it is told of each decision.

  Attributes:
    context: [N, H] float32 added to the first layer.
    slope: [N, SEEN] float32: the logit's linear part.
    first: [SEEN, H]; second: [H, K]; bias: [K]; last: [K] float32.
  """

  context: np.ndarray
  slope: np.ndarray
  first: np.ndarray
  second: np.ndarray
  bias: np.ndarray
  last: np.ndarray


class Draws(NamedTuple):
  """Placements in the order in which they are decided.

  Attributes:
    choices: [B, N] int32 devices.
    seen: [B, N, D, SEEN] float32, where asked for; else [B, 0, D, SEEN].
    may: [B, N, D] bool: the devices chosen from: allowed, with memory left
      where any has; like `seen`.
  """

  choices: np.ndarray
  seen: np.ndarray
  may: np.ndarray


class _State(NamedTuple):
  """The partial schedule. Arrays of [D] where nothing is said.

  Attributes:
    clock: microseconds until the device is free.
    load: microseconds of all that was decided to be there.
    persistent, held: bytes likewise, the second with outputs.
    latest: position of the last decision there, -1 for none.
    end: [num_ops] microseconds at which outputs are there.
    arrived: [num_ops, D] when a copy is there, -1 where none was sent.
    channel: [D * D] when each channel is free.
    layer, micro, pair: [groups, D] microseconds of work decided there.
    last: [1 + microbatches] device of the last decision of each; [0]: of any.
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


@allocating
def decode(
  tables: PartialTables,
  head: Head,
  noise: np.ndarray,
  forced: np.ndarray,
  keeps: bool,
) -> Draws:
  """Decides placements, one after the other.

  Args:
    tables: the problem.
    head: of the policy.
    noise: [B, N, D] float32 added to the logits: Gumbel noise for draws, 0 for
      the most probable choices.
    forced: [B, N] int32 devices to take whatever the logits say, -1 for none.
    keeps: whether what was seen is returned.
  """
  number, count, devices = noise.shape
  rows = count if keeps else 0
  draws = Draws(
    np.full((number, count), -1, np.int32),
    np.zeros((number, rows, devices, SEEN), np.float32),
    np.zeros((number, rows, devices), np.bool_),
  )
  seen = np.zeros((devices, SEEN), np.float32)
  may = np.zeros(devices, np.bool_)
  logits = np.zeros(devices, np.float32)
  work = np.zeros(len(head.bias) + head.first.shape[1], np.float32)
  for row in range(number):
    device_of = draws.choices[row]
    state = _empty(tables)
    for op in tables.order:
      decision = np.int64(tables.decision_of[op])
      if device_of[decision] < 0:
        best: Index = np.int64(forced[row, decision])
        _open(tables, state, decision, may)
        if best >= 0:
          may[best] = True
        _look(tables, state, device_of, decision, op, may, seen)
        if best < 0:
          _score(head, decision, seen, may, logits, work)
          best = np.int64(0)
          for device in range(devices):
            logits[device] += noise[row, decision, device]
            if logits[device] > logits[best]:
              best = np.int64(device)
        if keeps:
          draws.seen[row, decision] = seen
          draws.may[row, decision] = may
        _take(tables, state, device_of, decision, best)
      _run(tables, state, device_of, op, np.int64(device_of[decision]))
  return draws


@allocating_helper
def _empty(tables: PartialTables) -> _State:
  count, devices = tables.op_us.shape
  layers, micros, pairs = tables.groups
  return _State(
    np.zeros(devices),
    np.zeros(devices),
    np.zeros(devices),
    np.zeros(devices),
    np.full(devices, -1.0),
    np.zeros(count),
    np.full((count, devices), -1.0),
    np.zeros(devices * devices),
    np.zeros((layers, devices)),
    np.zeros((micros, devices)),
    np.zeros((pairs, devices)),
    np.full(1 + micros, -1, np.int64),
  )


@allocating_helper
def _open(
  tables: PartialTables, state: _State, decision: Index, may: np.ndarray
) -> None:
  """Fills in the devices to choose from."""
  some = False
  for device in range(len(may)):
    needs = state.persistent[device] + tables.persistent_bytes[decision]
    fits = needs <= tables.memory_bytes[device]
    may[device] = tables.allowed[decision, device] and fits
    some = some or may[device]
  if not some:
    may[:] = tables.allowed[decision]


@allocating_helper
def _look(
  tables: PartialTables,
  state: _State,
  device_of: np.ndarray,
  decision: Index,
  op: Index,
  may: np.ndarray,
  seen: np.ndarray,
) -> None:
  """Fills in [D, SEEN] what there is to see, relative to the best device."""
  devices = len(may)
  seen[:] = 0.0
  here_us = max(tables.fastest_us[decision], 0.01 * tables.mean_us)
  least = np.full(4, np.inf)  # of load, start, end, cut
  start, end = np.zeros(devices), np.zeros(devices)
  cut = _traffic(tables, device_of, decision, seen)
  for device in range(devices):
    if not may[device]:
      continue
    ready = _arrival(tables, state, device_of, op, device)
    start[device] = max(ready, state.clock[device])
    end[device] = start[device] + tables.work_us[decision, device]
    least[0] = min(least[0], state.load[device])
    least[1] = min(least[1], start[device])
    least[2] = min(least[2], end[device])
    least[3] = min(least[3], cut[device])
    wait = ready - state.clock[device]
    seen[device, 0] = np.tanh(wait / here_us)
  ideal = tables.ideal_us
  for device in range(devices):
    if not may[device]:
      continue
    row = seen[device]
    load = state.load[device]
    work_us = tables.work_us[decision, device]
    row[1] = (load + work_us) / ideal
    row[2] = (load - least[0]) / ideal
    row[3] = np.tanh((load - least[0]) / here_us)
    row[4] = (start[device] - least[1]) / ideal
    row[5] = np.tanh((start[device] - least[1]) / here_us)
    row[6] = (end[device] - least[2]) / ideal
    row[7] = np.tanh((end[device] - least[2]) / here_us)
    row[8] = (cut[device] - least[3]) / ideal
    row[9] = np.log1p(cut[device] / here_us) - np.log1p(least[3] / here_us)
    row[10] = np.log1p(cut[device] / here_us)
    _kin(tables, state, decision, device, row)
    row[20] = load <= 0.0
    memory = max(tables.memory_bytes[device], 1.0)
    persistent = state.persistent[device] + tables.persistent_bytes[decision]
    row[21] = persistent / memory
    row[22] = (state.held[device] + tables.held_bytes[decision]) / memory
    row[23] = np.log(
      max(work_us, 1e-9) / max(tables.fastest_us[decision], 1e-9)
    )
    row[SLOWER] = tables.slower[device]
    row[25] = 1.0
    if state.latest[device] >= 0.0:
      row[25] = tables.position[decision] - state.latest[device]
    for i in range(SEEN):
      row[i] = min(max(row[i], -_MOST), _MOST)


@allocating_helper
def _traffic(
  tables: PartialTables,
  device_of: np.ndarray,
  decision: Index,
  seen: np.ndarray,
) -> np.ndarray:
  """[D] microseconds of transfers with what was decided to be elsewhere; fills
  in the shares of inputs and outputs there, and where the largest is."""
  near = np.zeros((2, seen.shape[0]))
  total = np.full(2, 1e-9)
  largest, most = -1, 0.0
  for i in range(
    tables.near_offsets[decision], tables.near_offsets[decision + 1]
  ):
    side, other, us = 0, tables.near[i], tables.near_us[i]
    if other < 0:
      side, other = 1, -1 - other
    total[side] += us
    device = device_of[other]
    if device >= 0:
      near[side, device] += us
      if us > most:
        largest, most = device, us
  both = near[0] + near[1]
  for device in range(seen.shape[0]):
    seen[device, 17] = near[0, device] / total[0]
    seen[device, 18] = near[1, device] / total[1]
    seen[device, 19] = device == largest
  return both.sum() - both


@allocating_inlined
def _kin(
  tables: PartialTables,
  state: _State,
  decision: Index,
  device: Index,
  row: np.ndarray,
) -> None:
  """Fills in where its layer and its microbatch went."""
  micro = tables.micro[decision]
  layers = state.layer[tables.layer[decision]]
  micros = state.micro[micro]
  pairs = state.pair[tables.pair[decision]]
  row[11] = layers[device] / max(layers.sum(), 1e-9)
  row[12] = micros[device] / max(micros.sum(), 1e-9)
  row[13] = pairs[device] / max(pairs.sum(), 1e-9)
  row[14] = micros[device] / max(state.load[device], 1e-9)
  row[15] = state.last[1 + micro] == device
  row[16] = state.last[0] == device


@allocating_helper
def _score(
  head: Head,
  decision: Index,
  seen: np.ndarray,
  may: np.ndarray,
  logits: np.ndarray,
  work: np.ndarray,
) -> None:
  """Fills in [D] logits; `work` holds the perceptron's layers."""
  width = head.first.shape[1]
  hidden, narrow = work[:width], work[width:]
  for device in range(len(may)):
    if not may[device]:
      logits[device] = NEVER
      continue
    hidden[:] = head.context[decision]
    narrow[:] = head.bias
    score = np.float32(0.0)
    for i in range(SEEN):
      value = seen[device, i]
      score += value * head.slope[decision, i]
      if value != 0:
        for j in range(width):
          hidden[j] += value * head.first[i, j]
    for i in range(width):
      value = hidden[i]
      if value > 0:
        for j in range(len(narrow)):
          narrow[j] += value * head.second[i, j]
    for j in range(len(narrow)):
      score += max(narrow[j], np.float32(0.0)) * head.last[j]
    logits[device] = score


@allocating_helper
def _take(
  tables: PartialTables,
  state: _State,
  device_of: np.ndarray,
  decision: Index,
  device: Index,
) -> None:
  """Puts a decision on a device."""
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


@allocating_inlined
def _arrival(
  tables: PartialTables,
  state: _State,
  device_of: np.ndarray,
  op: Index,
  device: Index,
) -> float:
  """When the inputs of `op` could be on `device`."""
  ready = 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = device_of[tables.decision_of[producer]]
    at = state.end[producer]
    if source != device:
      if state.arrived[producer, device] >= 0:
        at = state.arrived[producer, device]
      else:
        channel = tables.links.channel[source, device]
        at = max(at, state.channel[channel])
        size = tables.in_bytes[i]
        at = arrival_us(tables.links, at, size, source, device)
    ready = max(ready, at)
  return ready


@allocating_helper
def _run(
  tables: PartialTables,
  state: _State,
  device_of: np.ndarray,
  op: Index,
  device: Index,
) -> None:
  """Schedules an op where its decision is; sends what it needs there."""
  ready = 0.0
  for i in range(tables.in_offsets[op], tables.in_offsets[op + 1]):
    producer = tables.in_src[i]
    source = device_of[tables.decision_of[producer]]
    at = state.end[producer]
    if source != device:
      if state.arrived[producer, device] < 0:
        channel = tables.links.channel[source, device]
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

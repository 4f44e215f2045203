"""A constraint model (CP-SAT) of placement and scheduling.

The solver chooses devices and orders under rules 1-3 (ready, device, channel)
of docs/simulation.md, so its bounds hold for the simulator. Needs the extra
`exact`.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from tfplace.bounds.heads import heads_and_tails
from tfplace.bounds.relaxed import Relaxed, relax
from tfplace.bounds.work import work_prices
from tfplace.core.problem import Problem
from tfplace.core.symmetry import alike_devices
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph
from tfplace.simulate.links import transfer_ends


def cp_model() -> Any:
  """Imports OR-tools' CP-SAT; raises TfplaceError if it is not installed."""
  try:
    # A large optional dependency.
    from ortools.sat.python import cp_model as module
  except ImportError as error:
    raise TfplaceError(
      "strategy 'exact' needs OR-tools: pip install 'tfplace[exact]'"
    ) from error
  return module


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
  """A constraint model of one problem.

  Proof that its optimum bounds the simulated step. Take any feasible placement
  and its simulated step, and round all its times down to ticks. Each constraint
  is a difference b - a >= p of times, where the model rounds p down. Since
  floor(b) >= floor(a + p) >= floor(a) + floor(p), it still holds. The parts of
  the rules that the model omits would only exclude more: queue order, memory
  over time, sends and receives, and waiting of zero-time ops for their device.

  Attributes:
    model: the `CpModel`.
    step: its objective, in ticks.
    on: [num_groups][num_devices] literals.
    tick_us: microseconds per tick.
    alike: sets of interchangeable devices. The model keeps one of the
      placements that differ only in their names.
  """

  model: Any
  step: Any
  on: list[list[Any]]
  tick_us: float
  alike: list[list[int]]

  def forbid(self, group_devices: np.ndarray) -> None:
    """Excludes a simulated placement under all its namings."""
    self.model.add_bool_or(
      [row[d].negated() for row, d in zip(self.on, group_devices, strict=True)]
    )

  def beat(self, step_time_us: float) -> None:
    """Excludes steps that are not faster by more than a tick."""
    self.model.add(self.step <= math.floor(step_time_us / self.tick_us) - 1)

  def renamed(self, group_devices: np.ndarray) -> list[np.ndarray]:
    """Returns the placement under every naming of interchangeable devices."""
    rows = []
    each = [itertools.permutations(chain) for chain in self.alike]
    for names in itertools.product(*each):
      to = np.arange(len(self.on[0]), dtype=np.int32)
      for chain, order in zip(self.alike, names, strict=True):
        to[chain] = order
      rows.append(to[group_devices])
    return rows


def solve(
  schedule: Schedule, limit_s: float, seed: int
) -> tuple[float, list[np.ndarray]]:
  """Runs the solver.

  Args:
    schedule: model from `make_schedule`.
    limit_s: time limit in seconds.

  Returns:
    A proven lower bound in microseconds of the remaining placements, infinite
    if there are none, and the [num_groups] devices of each improved schedule
    found.
  """
  module = cp_model()
  met: list[np.ndarray] = []

  class Tell(module.CpSolverSolutionCallback):  # type: ignore[name-defined]
    """Records the devices of each solution."""

    def on_solution_callback(self) -> None:
      values = [[self.boolean_value(x) for x in row] for row in schedule.on]
      met.append(np.array(values).argmax(axis=1).astype(np.int32))

  solver = module.CpSolver()
  solver.parameters.max_time_in_seconds = limit_s
  solver.parameters.random_seed = seed % 2**31
  # Eight interleaved strategies on one core give the same result on any
  # machine.
  solver.parameters.num_workers = 8
  solver.parameters.interleave_search = True
  if solver.solve(schedule.model, Tell()) == module.INFEASIBLE:
    return math.inf, met
  return max(0.0, solver.best_objective_bound) * schedule.tick_us, met


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Size of a model; all defaults were chosen by trial."""

  # Ticks of the shortest known step, which limits the rounding error.
  ticks: int = 2**24
  # Reach of `heads`; the graphs are small.
  reach: int = 256
  # Maximum ops x devices.
  choices: int = 20_000


_CONFIG = ModelConfig()


def make_schedule(problem: Problem, most_us: float) -> Schedule:
  """Builds the model of steps that take at most `most_us`, above 0."""
  return _Builder(problem, most_us).build()


def check(problem: Problem) -> None:
  """Raises TfplaceError if OR-tools is missing or the problem is too large."""
  cp_model()
  choices = problem.graph.num_ops * problem.cluster.num_devices
  if choices > _CONFIG.choices:
    raise TfplaceError(
      f"strategy 'exact' takes at most {_CONFIG.choices} ops x devices; graph"
      f" {problem.graph.name!r} on cluster {problem.cluster.name!r} has"
      f" {choices}"
    )


class _Builder:
  """Adds the variables and constraints of each rule."""

  def __init__(self, problem: Problem, most_us: float) -> None:
    self.problem, self.graph = problem, problem.graph
    self.cluster, self.groups = problem.cluster, GroupGraph(problem)
    self.relaxed: Relaxed = relax(problem)
    self.tick_us = most_us / _CONFIG.ticks
    self.most = self.ticks(most_us) + 1
    self.model = cp_model().CpModel()
    self.step = self.model.new_int_var(0, self.most, "step")
    self.start = [
      self.model.new_int_var(0, self.most, f"s{i}")
      for i in range(self.graph.num_ops)
    ]
    self.pairs: dict[tuple[int, int, int, int], Any] = {}

  def ticks(self, us: float) -> int:
    return math.floor(us / self.tick_us * (1 - 1e-12))

  def build(self) -> Schedule:
    self.on = [self._devices_of(g) for g in range(self.problem.num_groups)]
    self._windows()
    self._devices()
    self._memory()
    self._edges()
    self._transfers()
    alike = alike_devices(self.problem)
    for chain in alike:
      self._in_order(chain)
    self.model.minimize(self.step)
    return Schedule(self.model, self.step, self.on, self.tick_us, alike)

  def _devices_of(self, group: int) -> list[Any]:
    """Adds one literal per device, exactly one of them true."""
    row = [
      self.model.new_bool_var(f"x{group},{d}")
      for d in range(self.cluster.num_devices)
    ]
    self.model.add_exactly_one(row)
    offsets, ops = self.problem.group_ops
    first = ops[offsets[group]]
    for device, literal in enumerate(row):
      if math.isinf(self.relaxed.time_us[first, self._class(device)]):
        self.model.add(literal == 0)
    return row

  def _class(self, device: int) -> int:
    return int(self.relaxed.class_of[device])

  def _at(self, op: int, device: int) -> Any:
    return self.on[self.problem.group_of[op]][device]

  def _windows(self) -> None:
    """Adds proven bounds (`tfplace.bounds`) to guide the solver."""
    self.model.add(self.step >= self.ticks(self.problem.lower_bound_us))
    _, price = work_prices(self.relaxed)
    head, tail = heads_and_tails(self.relaxed, price, _CONFIG.reach)
    for op in range(self.graph.num_ops):
      for device in range(self.cluster.num_devices):
        c, here = self._class(device), self._at(op, device)
        time_us = self.relaxed.time_us[op, c]
        if math.isinf(time_us):
          continue
        if math.isinf(head[op, c] + tail[op, c]):
          self.model.add(here == 0)
          continue
        before, after = self.ticks(head[op, c]), self.ticks(time_us)
        after += self.ticks(tail[op, c])
        self.model.add(self.start[op] >= before).only_enforce_if(here)
        self.model.add(self.step >= self.start[op] + after).only_enforce_if(
          here
        )

  def _devices(self) -> None:
    """Adds rule 2 (device): one op at a time, with overhead gaps."""
    for device in range(self.cluster.num_devices):
      c, intervals = self._class(device), []
      for op in range(self.graph.num_ops):
        size = self._busy(op, c)
        if size > 0:
          intervals.append(
            self.model.new_optional_fixed_size_interval_var(
              self.start[op], size, self._at(op, device), f"i{op},{device}"
            )
          )
      self.model.add_no_overlap(intervals)

  def _busy(self, op: int, c: int) -> int:
    """Returns the ticks that an op holds a device of class `c`, or 0."""
    busy_us = self.relaxed.time_us[op, c] + self.relaxed.gap_us[op, c]
    return 0 if math.isinf(busy_us) else self.ticks(busy_us)

  def _memory(self) -> None:
    """Adds rule 6 (memory) for persistent bytes only."""
    held = np.floor(self.groups.persistent_bytes).astype(np.int64)
    for device, memory in enumerate(self.cluster.memory_bytes):
      if math.isfinite(memory):
        here = [row[device] for row in self.on]
        self.model.add(
          sum(int(b) * x for b, x in zip(held, here, strict=True) if b)
          <= math.floor(memory)
        )

  def _edges(self) -> None:
    """Adds rules 1 (ready) and 2 (device) for edges within a device."""
    group_of = self.problem.group_of
    ends = np.unique(
      np.stack((self.graph.edge_src, self.graph.edge_dst)), axis=1
    )
    for src, dst in ends.T.tolist():
      for device in range(self.cluster.num_devices):
        busy = self._busy(src, self._class(device))
        both = self._both(group_of[src], device, group_of[dst], device)
        self.model.add(
          self.start[dst] >= self.start[src] + busy
        ).only_enforce_if(both)

  def _both(self, group: int, device: int, other: int, target: int) -> Any:
    """Returns a literal that is true if both groups are on these devices."""
    if group == other:
      return self.on[group][device]
    key = int(group), device, int(other), target
    if key not in self.pairs:
      literal = self.model.new_bool_var("")
      ends = self.on[key[0]][device], self.on[key[2]][target]
      self.model.add_bool_or([literal, ends[0].negated(), ends[1].negated()])
      self.model.add_implication(literal, ends[0])
      self.model.add_implication(literal, ends[1])
      self.pairs[key] = literal
    return self.pairs[key]

  def _transfers(self) -> None:
    """Adds rule 3 (channel): one transfer per output and device."""
    group_of = self.problem.group_of
    queues: dict[int, list[Any]] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    for i in range(self.graph.num_edges):
      slot = int(self.graph.edge_src[i]), int(self.graph.edge_output[i])
      readers.setdefault(slot, []).append(i)
    for (src, _), edges in readers.items():
      away = [
        e for e in edges if group_of[self.graph.edge_dst[e]] != group_of[src]
      ]
      for target in range(self.cluster.num_devices if away else 0):
        self._transfer(src, away, target, queues)
    for intervals in queues.values():
      self.model.add_no_overlap(intervals)

  def _transfer(
    self, src: int, edges: list[int], target: int, queues: dict[int, list[Any]]
  ) -> None:
    """Adds the transfer of one output to one device, from any device."""
    group_of, cluster = self.problem.group_of, self.cluster
    size = float(self.graph.edge_bytes[edges[0]])
    begin = self.model.new_int_var(0, self.most, "")
    for source in range(cluster.num_devices):
      if source == target:
        continue
      time_us = self.relaxed.time_us[src, self._class(source)]
      if math.isinf(time_us):
        continue
      channel = int(cluster.channel[source, target])
      sent = []
      for edge in edges:
        dst = int(self.graph.edge_dst[edge])
        both = self._both(group_of[src], source, group_of[dst], target)
        if channel < 0:
          self.model.add(both == 0)
          continue
        _, arrival_us, _ = transfer_ends(cluster, 0.0, size, source, target)
        arrives = self.ticks(float(arrival_us))
        self.model.add(self.start[dst] >= begin + arrives).only_enforce_if(both)
        sent.append(both)
      if not sent:
        continue
      self._send(src, source, target, begin, sent, time_us, size, queues)

  def _send(
    self,
    src: int,
    source: int,
    target: int,
    begin: Any,
    sent: list[Any],
    time_us: float,
    size: float,
    queues: dict[int, list[Any]],
  ) -> None:
    """Adds the start of a transfer and its time on the channel."""
    cluster = self.cluster
    present = self.model.new_bool_var("")
    self.model.add_bool_or(sent).only_enforce_if(present)
    for literal in sent:
      self.model.add_implication(literal, present)
    self.model.add(
      begin >= self.start[src] + self.ticks(time_us)
    ).only_enforce_if(present)
    _, _, free_us = transfer_ends(cluster, 0.0, size, source, target)
    held = self.ticks(float(free_us))
    if held > 0:
      queues.setdefault(int(cluster.channel[source, target]), []).append(
        self.model.new_optional_fixed_size_interval_var(
          begin, held, present, ""
        )
      )

  def _in_order(self, chain: list[int]) -> None:
    """Makes groups use interchangeable devices in order.

    Any schedule can be renamed such that the first group on a device precedes
    the first group on the next device.
    """
    for device, after in itertools.pairwise(chain):
      for group, row in enumerate(self.on):
        earlier = [self.on[g][device] for g in range(group)]
        self.model.add_bool_or([row[after].negated(), *earlier])

"""Predicts measured steps: the simulator with calibrated communication costs.

An evaluator like the simulator, and the same where links take no time of
devices: accelerators with copy engines, or machines with a network between
them. See `tfplace.measure.calibrate.communication`.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.measure.calibrate import communication
from tfplace.simulate import Simulator
from tfplace.simulate.schedule import Schedule
from tfplace.simulate.simulator import simulate_batch
from tfplace.simulate.workspace import Workspace


class Predictor:
  """Predicts measured steps; an `Evaluator`.

  Memory, traffic and time in ops are those of the simulator, and the time of
  the step is that of the graph with its messages.

  Attributes:
    problem: as `OpenCluster.profiled` returns it.
  """

  def __init__(self, problem: Problem) -> None:
    self.problem = problem
    self._simulator = Simulator(problem)
    self._factors = communication.factors_of(problem.cluster)

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices, or `Placement`s, in order.

    Raises:
      PlacementError: a placement that the problem does not allow.
    """
    plain = self._simulator.evaluate(placements)
    if self._factors is None:
      return plain
    rows = [p.devices if isinstance(p, Placement) else p for p in placements]
    return [
      dataclasses.replace(
        evaluation,
        step_time_us=Sample(self.problem, row).step_us(self._factors),
      )
      for evaluation, row in zip(plain, rows, strict=True)
    ]


class Sample:
  """One placement, simulated with one set of factors after another."""

  def __init__(self, problem: Problem, devices: np.ndarray) -> None:
    """Takes a placement [num_ops] of the problem."""
    self._messages = communication.with_messages(problem, devices)
    self._tables = Simulator(self._messages.problem, 1).tables
    self._workspaces: list[Workspace] = []

  def step_us(self, factors: communication.CommunicationFactors) -> float:
    """The simulated step."""
    tables, messages = self._tables, self._messages
    latency = np.where(messages.is_timed, factors.latency, 1.0)
    times = messages.times_us(factors)[:, None]
    ops = tables.ops.copy()
    ops["tail_us"] = 0.0  # of the old times; 0 prunes nothing
    changed = tables._replace(
      time_us=np.repeat(times, len(tables.kind), axis=1),
      latency_us=tables.latency_us * latency,
      ops=ops,
    )
    rows = messages.devices[None].copy()
    batch = simulate_batch(changed, rows, self._workspaces, 1)
    return float(batch.step_time_us[0])


class Times(NamedTuple):
  """When each op of a placement is ready, starts and ends, microseconds.

  Attributes:
    ready: [num_ops] its last input has arrived.
    start: [num_ops].
    end: [num_ops].
  """

  ready: np.ndarray
  start: np.ndarray
  end: np.ndarray


def times(placement: Placement) -> Times:
  """The ops of the predicted step."""
  problem, count = placement.problem, placement.problem.graph.num_ops
  factors = communication.factors_of(problem.cluster)
  if factors is None:
    schedule = Simulator(problem).schedule(placement)
  else:
    messages = communication.with_messages(problem, placement.devices)
    schedule = Simulator(messages.costed(factors)).schedule(messages.devices)
  found = _ready_us(schedule), schedule.op_start_us, schedule.op_end_us
  return Times(*(each[:count] for each in found))


def _ready_us(schedule: Schedule) -> np.ndarray:
  """[num_ops] when the last input of each op is on its device."""
  graph = schedule.placement.problem.graph
  there = schedule.op_end_us[graph.edge_src]
  transfer = schedule.transfer_of_edge
  sent = transfer >= 0
  there[sent] = schedule.transfers.arrival_us[transfer[sent]]
  ready = np.zeros(graph.num_ops)
  np.maximum.at(ready, graph.edge_dst, there)
  return ready

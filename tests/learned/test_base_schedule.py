"""Features of the simulated schedule of the base, checked by hand."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of
from tfplace import Simulator
from tfplace.graph import OpSpec, build_graph
from tfplace.learned.decisions import group_decisions
from tfplace.learned.ordered.base_schedule import (
  BUSY_SHARE,
  CRITICAL_SHARE,
  CRITICAL_WAIT,
  FROM_DEVICE,
  LATE_IN,
  LATE_OUT,
  OCCUPIED_SHARE,
  SOFTLY_CRITICAL_SHARE,
  TO_DEVICE,
)
from tfplace.learned.ordered.tables import BaseTables


def joined():
  """Ops of 10 and 3 us that one of 5 us joins; launches take 1, links 2 us."""
  times = {"long": 10.0, "short": 3.0, "join": 5.0}
  ops = [
    OpSpec(name, "MatMul", {"GPU": us}, [0.0]) for name, us in times.items()
  ]
  return build_graph("joined", ops, [(0, 0, 2), (1, 0, 2)])


def seen(graph, devices, number=2):
  problem = problem_of(graph, gpus(number))
  decisions = group_decisions(problem)
  of_op = decisions.decision_of
  base = np.array(devices, np.int32)
  _, tables = BaseTables(decisions).based_on(base)
  return tables.scheduled[of_op], Simulator(problem).evaluate(base[None])[0]


def test_what_has_slack_is_not_critical():
  found, step = seen(joined(), [0, 1, 0])
  assert step.step_time_us == 16.0  # 10, a launch, 5
  long, short, join = found[:, 0]
  assert long[CRITICAL_SHARE] == join[CRITICAL_SHARE] == 1.0
  # It ends at 3 and may end at 9: a slack of 6 of 16.
  assert short[CRITICAL_SHARE] == pytest.approx(np.exp(-6 / 16 / 0.003))
  assert short[SOFTLY_CRITICAL_SHARE] == pytest.approx(
    np.exp(-6 / 16 / 0.03), rel=1e-5
  )
  # The other device is busy for 3 of the 16; the long op has it from 0 to 10.
  assert found[0, 1, BUSY_SHARE] == pytest.approx(0.3, abs=0.01)
  assert found[0, 1, OCCUPIED_SHARE] == pytest.approx(0.0, abs=1e-6)
  assert (
    found[1, 0, BUSY_SHARE] == found[1, 0, OCCUPIED_SHARE] == pytest.approx(1.0)
  )


def test_a_transfer_on_the_critical_path_is_seen_from_both_ends():
  found, step = seen(joined(), [1, 0, 0])
  assert step.step_time_us == 17.0  # 10, a transfer of 2, 5
  size = 0.5 * np.log1p(1000 * 2 / 17)
  assert found[2, 1, FROM_DEVICE] == pytest.approx(size)
  assert found[0, 0, TO_DEVICE] == pytest.approx(size)
  assert found[2, 0, FROM_DEVICE] == found[1, 0, TO_DEVICE] == 0.0
  # If the join moves to its input, it ends 2 us earlier; the other moved to
  # device 1 would arrive in time without queues.
  assert found[2, 1, LATE_IN] == pytest.approx(np.tanh(20 * -2 / 17))
  assert found[0, 0, LATE_OUT] == pytest.approx(np.tanh(20 * -2 / 17))


def test_waits_for_a_device_are_told_from_waits_for_inputs():
  # All on one device: the short op waits for the long one.
  found, step = seen(joined(), [0, 0, 0])
  assert step.step_time_us == 20.0
  assert (found[:, 0, CRITICAL_SHARE] == 1.0).all()
  waited = found[:, 0, CRITICAL_WAIT]
  assert waited[1] == pytest.approx(0.5 * np.log1p(1000 * 11 / 20))
  assert waited[0] == 0.0
  assert waited[2] == pytest.approx(0.5 * np.log1p(1000 * 1 / 20))  # a launch

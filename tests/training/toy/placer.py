"""A learned method as a newcomer would add it: features and placer.

Decisions go to the device on which they are fastest or slowest, whichever the
one weight of the policy says.
"""

import dataclasses

import numpy as np

from tfplace.learned import Method
from tfplace.learned.decisions import group_decisions
from tfplace.learned.policies import PolicyPlacer
from tfplace.learned.policy_format import PolicyInputs

SIGNATURE = {
  "time": ((None, None), "float32"),
  "allowed": ((None, None), "bool"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class ToyInputs(PolicyInputs):
  """[N, D] times, as a share of the longest, and which devices are allowed."""

  time: np.ndarray
  allowed: np.ndarray


def extract(decisions):
  time_us = np.zeros(decisions.allowed.shape, np.float32)
  op_us = np.nan_to_num(decisions.problem.time_us)
  np.add.at(time_us, decisions.decision_of, op_us)
  return ToyInputs(time_us / time_us.max(), decisions.allowed)


@dataclasses.dataclass(frozen=True, eq=False)
class ToyPlacer(PolicyPlacer):
  name = "toy"

  def _propose(self, policy, tracker, rng):
    decisions = group_decisions(tracker.problem)
    logits = policy.logits(extract(decisions))
    tracker.offer(decisions.to_devices(logits.argmax(axis=1)))


METHODS = {"toy": Method("tests.training.toy.placer:ToyPlacer", version=1)}

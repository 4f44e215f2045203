"""What the policy sees, and the placer that asks it."""

import dataclasses

import numpy as np

from tfplace.learned import policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.policy_format import PolicyInputs
from tfplace.placers.tracker import Tracker

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


@dataclasses.dataclass(frozen=True)
class ToyPlacer:
  policy: str | None = None

  def place(self, problem, evaluator, budget, seed):
    policy = policies.load_placers_policy("toy", self.policy)
    tracker = Tracker("toy", problem, evaluator, budget)
    decisions = group_decisions(problem)
    logits = policy.logits(extract(decisions))
    tracker.offer(decisions.to_devices(logits.argmax(axis=1)))
    return tracker.result()

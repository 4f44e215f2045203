"""What a placement is worth to a learner, as a number.

Two scales, both relative to a step time of the graph: PPO's logarithm, and the
papers' negative root. A placement that fits always has a reward of its own,
however slow it is: with a lower bound on rewards, a policy that begins with
random weights, and so with a third of the work on a CPU that is 25 times as
slow, sees the same reward everywhere and learns nothing.
"""

import numpy as np


def log_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """[B] float32 log(baseline / step time).

  Args:
    step_us: [B], infinite where a placement does not fit or cannot run.
    baseline_us: step time whose reward is 0; 10% faster is worth 0.1.
    infeasible: reward of what does not fit; less if anything that fits does
      not have more.
  """
  with np.errstate(divide="ignore"):
    return _below(np.log(baseline_us / step_us), step_us, infeasible)


def root_rewards(
  step_us: np.ndarray, baseline_us: float, infeasible: float
) -> np.ndarray:
  """[B] float32 -sqrt(step time / baseline), as `log_rewards`.

  HDP has -sqrt(seconds), and -10 for what does not fit; GDP the same.
  """
  return _below(-np.sqrt(step_us / baseline_us), step_us, infeasible)


def _below(
  reward: np.ndarray, step_us: np.ndarray, infeasible: float
) -> np.ndarray:
  """`reward` where it fits; elsewhere `infeasible`, or the worst of those."""
  fits = np.isfinite(step_us)
  worst = min(infeasible, float(reward[fits].min(initial=infeasible)))
  return np.where(fits, reward, worst).astype(np.float32)

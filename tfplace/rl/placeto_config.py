"""How Placeto is trained; plain values."""

import dataclasses

from tfplace.errors import TrainingError

ALGORITHMS = ("ppo", "reinforce")


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Episodes, and what is done with them.

  The paper's values where it gives any (arXiv 1906.08879 and its code); PPO is
  tfplace's own choice. Sizes shared with other strategies are in `PPOConfig`:
  `samples` is the number of episodes that advance together.

  Attributes:
    algorithm: "ppo" or "reinforce".
    log_reward: a reward is the difference of the logarithms of step times,
      else of step times over the task's baseline.
    memory_penalty: added to the cost per GB above a device's memory (the
      paper's code: 2).
    max_cost: bound on the cost, which is 0 at the baseline. The paper gives
      no value; 9 is 8,100 times the baseline's step time. (At 3, or 20 times,
      most random placements with a CPU among the devices were worth the same.)
    from_best: share of the episodes that start from the best placement so far;
      the others start from a random one. (The paper's first placement is
      arbitrary; its code offers both.)
    discount: of later rewards (paper: 1).
    gae_lambda: of PPO's advantages. The paper has no PPO; chosen by trial.
    minibatch: states per gradient step of PPO; bounds memory.
    first_learning_rate, last_learning_rate: of REINFORCE's Adam.
    first_entropy, last_entropy: weight of the entropy in REINFORCE.
    anneal_iterations: over so many iterations go both from first to last,
      linearly. The paper gives no value.
    baseline_rounds: REINFORCE's baseline of a step is its mean return over so
      many iterations (the paper's code: 10).
    max_gradient_norm: of REINFORCE (the paper's code: 1.25).
  """

  algorithm: str = "ppo"
  log_reward: bool = True
  memory_penalty: float = 2.0
  max_cost: float = 9.0
  from_best: float = 0.5
  discount: float = 1.0
  gae_lambda: float = 0.9
  minibatch: int = 128
  first_learning_rate: float = 1e-3
  last_learning_rate: float = 1e-4
  first_entropy: float = 1.0
  last_entropy: float = 0.0
  anneal_iterations: int = 200
  baseline_rounds: int = 10
  max_gradient_norm: float = 1.25

  def __post_init__(self) -> None:
    if self.algorithm not in ALGORITHMS:
      raise TrainingError(
        f"Placeto's algorithm is one of {', '.join(ALGORITHMS)}, not"
        f" {self.algorithm!r}"
      )

"""What decides a run of REINFORCE."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ReinforceConfig:
  """REINFORCE as the recurrent placers use it; values without a source were
  chosen by trial.

  Attributes:
    samples: placements per iteration, judged in one call.
    epochs: passes over them; those after the first take PPO's objective.
    clip: bound on each decision's probability ratio there.
    learning_rate: of Adam. (hierarchical_controller: 0.1. On graphs of ten
      ops, 1e-3 had learnt nothing after 10,000 placements.)
    entropy: weight of the mean entropy per decision.
    baseline_decay: share of the moving-average baseline that each iteration
      keeps (TensorFlow's hierarchical_controller: 0.9).
    infeasible_reward: of a placement that does not fit or cannot run, unless
      one that fits has less (`root_rewards`); -3 is 9 times the baseline's
      time. HDP has -10 where step times are in seconds, mostly below 1.
    noise: standard deviation of the noise on the grouper's logits, as a share
      of their root mean square (hierarchical_controller: 0.5).
    noise_steps: iterations of a graph with that noise (HDP: 500).
    valid_only_after: iterations of a graph after which only placements that
      fit teach (hierarchical_controller: 1,000).
    max_gradient_norm: gradients are scaled down to it (hierarchical_controller:
      1).
    elite: share of the samples that teach, see `rl/elite.py`; the papers' is 1.
  """

  samples: int = 16
  epochs: int = 1
  clip: float = 0.2
  learning_rate: float = 1e-2
  entropy: float = 0.01
  baseline_decay: float = 0.9
  infeasible_reward: float = -3.0
  noise: float = 0.5
  noise_steps: int = 500
  valid_only_after: int = 1000
  max_gradient_norm: float = 1.0
  elite: float = 1.0

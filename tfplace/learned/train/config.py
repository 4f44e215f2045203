"""Everything that decides the outcome of a training run."""

import dataclasses
from typing import Any

from tfplace.errors import TrainingError
from tfplace.learned.placeto.learner import PlacetoConfig
from tfplace.learned.sequence.reinforce import ReinforceConfig

CREDITS = ("shared", "critical_path")


@dataclasses.dataclass(frozen=True)
class PPOConfig:
  """PPO on one-step episodes; no default of tf-agents is relied on.

  Attributes:
    samples: placements per iteration (the batch of one update).
    epochs: passes over them (a public re-creation of GO has 4).
    clip: bound on each decision's probability ratio (PPO, GO: 0.2).
    learning_rate: of Adam, for PPO.
    entropy: weight of the mean entropy per decision (GO: 0.01).
    value_weight: weight of the value loss; nothing is shared with the actor.
    replays_best: the graph's best placement so far takes the place of one
      sample (self-imitation, Oh et al. 2018, by the clipped objective): a rare
      find is not lost in the noise of thousands of decisions. (On 2-layer
      Transformer-XL, after 680 placements from random weights, the most
      probable placement takes 321 to 543 ms with it, 414 to 631 without.)
    max_clip_fraction: no further epoch once more of the decisions than this
      have left the clip's bounds.
    max_gradient_norm: gradients are scaled down to it (Placeto: 1.25).
    averaging: share of the exported weights, a moving average, that each
      iteration keeps (`rl/averaging.py`).
    elite: share of the samples that teach: the best ones, each by what it is
      above the best of the others (risk-seeking policy gradient, Petersen et
      al. 2021). 1 takes all rewards. What a placer keeps is the best of its
      draws; a policy that learns from the mean draws one placement only.
    credit: "shared": a placement's advantage is that of each of its decisions;
      "critical_path": in part what the decision's part in the simulated
      critical path says (`rl/credit.py`).
    credit_weight: of the critical path, 0 to 1. Above 0.5, a graph of 512
      decisions (an image classifier's cell) got worse in a trial.
    infeasible_reward: of a placement that does not fit or cannot run, unless
      one that fits has less (`log_rewards`); -2 is 7.4 times the baseline's
      time.
  """

  samples: int = 16
  epochs: int = 4
  clip: float = 0.2
  learning_rate: float = 1e-3
  entropy: float = 0.01
  value_weight: float = 0.5
  replays_best: bool = True
  max_clip_fraction: float = 0.1
  max_gradient_norm: float = 1.0
  infeasible_reward: float = -2.0
  averaging: float = 0.999
  elite: float = 1.0
  credit: str = "shared"
  credit_weight: float = 0.5

  def __post_init__(self) -> None:
    if self.credit not in CREDITS:
      raise TrainingError(
        f"unknown credit {self.credit!r}; choose one of {', '.join(CREDITS)}"
      )
    if not 0 < self.elite <= 1:
      raise TrainingError(
        f"the elite's share of the samples is {self.elite}, not in (0, 1]"
      )


@dataclasses.dataclass(frozen=True)
class ImitationConfig:
  """Cross-entropy on the best classical placement, before reinforcement
  learning, and on the best one found since, during it.

  Attributes:
    steps: gradient steps per graph; 0 starts PPO from random weights.
    learning_rate: of Adam.
    smoothing: probability kept for the devices that the target does not name,
      so that PPO has something to explore. A CPU is among them: at 0.05, the
      median draw took twice the target's time.
    rehearsals: gradient steps towards the best placement so far before each
      iteration of a run that began with imitation. Without them the recurrent
      policies fell back within ten iterations to one GPU for everything, which
      is better than nearly all of what they draw, and drew nothing else.
  """

  steps: int = 100
  learning_rate: float = 2e-3
  smoothing: float = 0.01
  rehearsals: int = 1


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """A training run.

  Attributes:
    iterations: PPO iterations, each on one graph, in turn.
    seed: decides initial weights and every sample.
    checkpoint_every: iterations between checkpoints.
    strategy: one of `strategies.STRATEGIES`.
    network: sizes of the policy, of its learner's `network_type`; None for the
      defaults.
    ppo: see `PPOConfig`.
    reinforce: see `ReinforceConfig`.
    imitation: see `ImitationConfig`.
    placeto: see `PlacetoConfig`.
  """

  iterations: int = 100
  seed: int = 0
  checkpoint_every: int = 10
  strategy: str = "gdp"
  network: Any = None
  ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
  reinforce: ReinforceConfig = dataclasses.field(
    default_factory=ReinforceConfig
  )
  imitation: ImitationConfig = dataclasses.field(
    default_factory=ImitationConfig
  )
  placeto: PlacetoConfig = dataclasses.field(default_factory=PlacetoConfig)

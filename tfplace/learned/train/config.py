"""What decides the outcome of a training run, as plain values."""

import dataclasses
from typing import Any

from tfplace.errors import TrainingError


def check_elite(share: float) -> None:
  """Checks the share of the samples that teach.

  Raises:
    TrainingError: it is none.
  """
  if not 0 < share <= 1:
    raise TrainingError(
      f"the elite's share of the samples is {share}, not in (0, 1]"
    )


@dataclasses.dataclass(frozen=True)
class PPOConfig:
  """Proximal policy optimization; no default of tf-agents is relied on.

  Attributes:
    samples: placements per iteration (the batch of one update).
    epochs: passes over them (a public re-creation of GO has 4).
    clip: bound on each decision's probability ratio (PPO, GO: 0.2).
    learning_rate: of Adam, for PPO.
    entropy: weight of the mean entropy per decision (GO: 0.01).
    value_weight: weight of the value loss; nothing is shared with the actor.
    max_clip_fraction: no further epoch once more of the decisions than this
      have left the clip's bounds.
    max_gradient_norm: gradients are scaled down to it (Placeto: 1.25).
    infeasible_reward: of a placement that does not fit or cannot run, unless
      one that fits has less (`log_rewards`); -2 is 7.4 times the baseline's
      time.
    averaging: share of the exported weights, a moving average, that each
      iteration keeps (`MovingAverage`).
    elite: share of the samples that teach: the best ones, each by what it is
      above the best of the others (risk-seeking policy gradient, Petersen et
      al. 2021). 1 takes all rewards. What a placer keeps is the best of its
      draws; a policy that learns from the mean draws one placement only.
  """

  samples: int = 16
  epochs: int = 4
  clip: float = 0.2
  learning_rate: float = 1e-3
  entropy: float = 0.01
  value_weight: float = 0.5
  max_clip_fraction: float = 0.1
  max_gradient_norm: float = 1.0
  infeasible_reward: float = -2.0
  averaging: float = 0.999
  elite: float = 1.0

  def __post_init__(self) -> None:
    check_elite(self.elite)


@dataclasses.dataclass(frozen=True)
class ImitationConfig:
  """Cross-entropy on the best classical placement, before reinforcement
  learning, and on the best one found since, during it.

  Attributes:
    steps: gradient steps per graph; 0 starts from random weights.
    learning_rate: of Adam.
    smoothing: probability kept for the devices that the target does not name,
      so that there is something to explore. A CPU is among them: at 0.05, the
      median draw took twice the target's time.
    rehearsals: gradient steps towards the best placement so far before each
      iteration of a run that began with imitation, so that a policy does not
      fall back to one GPU for everything.
  """

  steps: int = 100
  learning_rate: float = 2e-3
  smoothing: float = 0.01
  rehearsals: int = 1


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """A training run.

  Attributes:
    iterations: of reinforcement learning, each on one graph, in turn.
    seed: decides initial weights and every sample.
    checkpoint_every: iterations between checkpoints.
    strategy: a learned one.
    network: sizes of the policy, of its learner's `network_type`; None for the
      defaults.
    method: how the policy learns, of its learner's `method_type`; None for the
      defaults.
    imitation: see `ImitationConfig`.
  """

  iterations: int = 100
  seed: int = 0
  checkpoint_every: int = 10
  strategy: str = "gdp"
  network: Any = None
  method: Any = None
  imitation: ImitationConfig = dataclasses.field(
    default_factory=ImitationConfig
  )

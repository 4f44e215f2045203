"""What decides the outcome of a training run, as plain values."""

import dataclasses
from typing import Any

from tfplace.errors import TrainingError
from tfplace.learned import learner_type


def check_elite(share: float) -> None:
  """Raises a `TrainingError` unless it is a share of samples."""
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
      GDP has no value network.
    max_clip_fraction: no further epoch once more of the decisions than this
      have left the clip's bounds.
    max_gradient_norm: gradients are scaled down to it (Placeto: 1.25).
    infeasible_reward: of a placement that does not fit or cannot run, unless
      one that fits has less (`log_rewards`); -2 is 7.4 times the baseline's
      time.
    averaging: share of the exported weights, a moving average, that each
      iteration keeps (`MovingAverage`).
    elite: share of the samples that teach, see `objectives.margins`; 1 takes
      all rewards.
    temperature: that logits are divided by in training, of `ordered`.
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
  temperature: float = 1.0

  def __post_init__(self) -> None:
    check_elite(self.elite)


@dataclasses.dataclass(frozen=True)
class ReinforceConfig:
  """REINFORCE as the recurrent placers use it; values without a source were
  chosen by trial.

  Attributes:
    samples: placements per iteration, judged in one call.
    learning_rate: of Adam (hierarchical_controller: 0.1).
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
    elite: share of the samples that teach, see `PPOConfig`; the papers' is 1.
  """

  samples: int = 16
  learning_rate: float = 1e-2
  entropy: float = 0.01
  baseline_decay: float = 0.9
  infeasible_reward: float = -3.0
  noise: float = 0.5
  noise_steps: int = 500
  valid_only_after: int = 1000
  max_gradient_norm: float = 1.0
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
      so that there is something to explore.
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


@dataclasses.dataclass(frozen=True)
class Request:
  """What the caller of a run decides; the flags of tfplace-train.

  Other fields are as in `TrainConfig` and in the strategy's own config.

  Attributes:
    checkpoint_dir: checkpoints and, in `logs`, TensorBoard's scalars.
    export_dir: receives the policy and, in `placements`, what was found.
    init_from: exported policy to start from; "shipped" is the package's own.
    imitation_steps: see `ImitationConfig.steps`.
    max_decisions: each graph is a task at each of these numbers of decisions;
      None keeps all groups.
    search_evaluations: see `DemonstrationConfig`.
    learning_rate: of the strategy's Adam; None for the strategy's own.
    entropy: weight of the entropy; None for the strategy's own.
    algorithm, visits: of Placeto, see `PlacetoConfig`.
    elite: of all but Placeto, see `PPOConfig`.
  """

  checkpoint_dir: str
  export_dir: str
  init_from: str | None = None
  iterations: int = 200
  imitation_steps: int = 100
  samples: int = 16
  max_decisions: tuple[int | None, ...] = (None,)
  search_evaluations: int = 0
  checkpoint_every: int = 10
  learning_rate: float | None = None
  entropy: float | None = None
  seed: int = 0
  strategy: str = "gdp"
  algorithm: str = "ppo"
  visits: int = 1
  elite: float = 1.0

  def config(self) -> TrainConfig:
    """The training run that is asked for."""
    learner = learner_type(self.strategy)
    return TrainConfig(
      iterations=self.iterations,
      seed=self.seed,
      strategy=self.strategy,
      checkpoint_every=self.checkpoint_every,
      method=learner.method_of(dataclasses.asdict(self)),
      imitation=ImitationConfig(steps=self.imitation_steps),
    )

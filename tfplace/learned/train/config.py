"""Configuration of training runs."""

import dataclasses
from typing import Any

from tfplace.errors import TrainingError
from tfplace.learned import learner_type


def check_elite(share: float) -> None:
  """Raises a `TrainingError` unless `share` is in (0, 1]."""
  if not 0 < share <= 1:
    raise TrainingError(
      f"the elite's share of the samples is {share}, not in (0, 1]"
    )


@dataclasses.dataclass(frozen=True)
class PPOConfig:
  """Proximal policy optimization; no tf-agents default is used.

  Attributes:
    samples: Placements per iteration, the batch size of an update.
    epochs: Passes over the batch (a public re-creation of GO: 4).
    clip: Bound on the importance ratio of each decision (PPO, GO: 0.2).
    learning_rate: Learning rate of Adam.
    entropy: Weight of the mean entropy per decision (GO: 0.01).
    value_weight: Weight of the value loss. The value network shares nothing
      with the actor. GDP has none.
    max_clip_fraction: Clipped fraction of decisions above which no further
      epoch runs.
    max_gradient_norm: Gradient norm limit.
    infeasible_reward: Reward of infeasible placements, or the lowest feasible
      reward if that is lower (`log_rewards`). -2 is 7.4 times the baseline
      time.
    averaging: Decay of the exported moving average (`MovingAverage`).
    elite: Fraction of the samples to learn from, see `objectives.margins`; 1
      uses all rewards.
    recompute_above: Decisions of a graph above which gradients of `gdp`
      recompute activations, which trades time for memory.
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
  recompute_above: int = 8192

  def __post_init__(self) -> None:
    check_elite(self.elite)


@dataclasses.dataclass(frozen=True)
class ImitationConfig:
  """Supervised training before RL: by default, on a searched placement.

  `ordered` learns which single changes gain instead. During reinforcement
  learning, the target is the best placement so far.

  Attributes:
    steps: Gradient steps per graph; 0 starts from random weights.
    learning_rate: Learning rate of Adam.
    smoothing: Probability of devices other than the target, so that exploration
      remains possible.
    rehearsals: Supervised steps before each iteration of a run that began with
      imitation. They prevent a collapse to a single GPU.
    checkpoint_every: Gradient steps between checkpoints.
  """

  steps: int = 100
  learning_rate: float = 2e-3
  smoothing: float = 0.01
  rehearsals: int = 1
  checkpoint_every: int = 50


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Settings of a training run.

  Attributes:
    iterations: Iterations of reinforcement learning, each on one graph in turn.
    seed: Seed of initial weights and all samples.
    checkpoint_every: Iterations between checkpoints.
    strategy: Name of a learned strategy.
    network: Network sizes, a `network_type` of the learner; None for defaults.
    method: Algorithm settings, a `method_type` of the learner; None for
      defaults.
    imitation: See `ImitationConfig`.
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
  """Training request, as given by the flags of tfplace-train.

  Other fields are those of `TrainConfig` and of the strategy's config.

  Attributes:
    checkpoint_dir: Directory of checkpoints and, in `logs`, TensorBoard
      scalars.
    export_dir: Directory for the policy and, in `placements`, the best
      placements.
    init_from: Exported policy to start from; "shipped" is the one of the
      package.
    imitation_steps: See `ImitationConfig.steps`; None for the strategy's
      default.
    max_decisions: Numbers of decisions; each graph has tasks at each number,
      where None keeps all groups. None for the strategy's default.
    search_evaluations: See `DemonstrationConfig`.
    search_s: Of policies that change placements: seconds of a last search for
      one, per problem.
    learning_rate: Learning rate of Adam; None for the strategy's default.
    entropy: Weight of the entropy; None for the strategy's default.
    elite: Setting of all strategies but Placeto, see `PPOConfig`; None for the
      strategy's default.
  """

  checkpoint_dir: str
  export_dir: str
  init_from: str | None = None
  iterations: int = 200
  imitation_steps: int | None = None
  samples: int = 16
  max_decisions: tuple[int | None, ...] | None = None
  search_evaluations: int = 0
  search_s: float = 0.0
  checkpoint_every: int = 10
  learning_rate: float | None = None
  entropy: float | None = None
  seed: int = 0
  strategy: str = "gdp"
  elite: float | None = None

  @property
  def decisions(self) -> tuple[int | None, ...]:
    """Numbers of decisions, by default those of the strategy."""
    if self.max_decisions is not None:
      return self.max_decisions
    return learner_type(self.strategy).default_decisions

  def config(self) -> TrainConfig:
    """Returns the configuration of the requested run."""
    learner = learner_type(self.strategy)
    steps = self.imitation_steps
    return TrainConfig(
      iterations=self.iterations,
      seed=self.seed,
      strategy=self.strategy,
      checkpoint_every=self.checkpoint_every,
      method=learner.method_of(dataclasses.asdict(self)),
      imitation=ImitationConfig(
        learner.imitation_steps if steps is None else steps
      ),
    )

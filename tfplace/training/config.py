"""Configuration of training runs, with every default."""

import dataclasses
import os
from typing import Any

from tfplace.errors import TrainingError
from tfplace.learned import policies
from tfplace.learned.ordered.placer import SIZES

# Defaults by strategy (a public re-creation of GO: entropy 0.01, rate 1e-4).
_PPO = {
  "learning_rate": 1e-3,
  "entropy": 0.01,
  "elite": 1.0,
  "imitation_steps": 100,
  "max_decisions": (None,),
}
_DEFAULTS: dict[str, dict[str, Any]] = {
  "gdp": _PPO,
  "ordered": {
    **_PPO,
    "entropy": 0.003,
    "elite": 0.25,
    "imitation_steps": 10,
    "max_decisions": SIZES,
  },
}
_REINFORCE = {**_PPO, "learning_rate": 1e-2}  # By trial.


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Settings of a training run; None selects the strategy's default.

  Attributes:
    strategy: Name of a learned strategy.
    checkpoint_dir: Directory of checkpoints, imitation targets and, in `logs`,
      TensorBoard scalars, from which the run resumes; None keeps none.
    export_dir: Directory for the policy and, in `placements`, the best
      placements.
    init_from: Exported policy to start from; "shipped" is the one of the
      package. Its network sizes override `network`.
    network: Network sizes, a `network_type` of the learner.
    max_decisions: Numbers of decisions; each graph has tasks at each number,
      where None keeps all groups.
    imitation_steps: Gradient steps of imitation per graph; with 0, the run
      starts with reinforcement learning.
    search_s: Of policies that change placements: seconds of a last search for
      one, per problem. A resumed run keeps what the first one found.
    iterations: Iterations of reinforcement learning, each on one graph in turn.
    samples: Placements per iteration.
    elite: Fraction of the samples to learn from, see `learner.margins`.
    learning_rate: Learning rate of Adam.
    entropy: Weight of the mean entropy per decision.
    checkpoint_every: Iterations between checkpoints.
    seed: Seed of initial weights, samples and searches.

  Raises:
    TrainingError: `elite` is not in (0, 1].
  """

  strategy: str = "ordered"
  checkpoint_dir: str | None = None
  export_dir: str = ""
  init_from: str | None = None
  network: Any = None
  max_decisions: tuple[int | None, ...] = None  # type: ignore[assignment]
  imitation_steps: int = None  # type: ignore[assignment]
  search_s: float = 0.0
  iterations: int = 200
  samples: int = 16
  elite: float = None  # type: ignore[assignment]
  learning_rate: float = None  # type: ignore[assignment]
  entropy: float = None  # type: ignore[assignment]
  checkpoint_every: int = 10
  seed: int = 0

  def __post_init__(self) -> None:
    for name, value in _DEFAULTS.get(self.strategy, _REINFORCE).items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    if not 0 < self.elite <= 1:
      raise TrainingError(
        f"the elite's share of the samples is {self.elite}, not in (0, 1]"
      )

  @property
  def start(self) -> str | None:
    """Directory of the policy to start from, or None."""
    if self.init_from == policies.SHIPPED_NAME:
      return os.fspath(policies.SHIPPED / self.strategy)
    return self.init_from

  def fingerprint(self) -> dict[str, Any]:
    """Returns the settings that a resumed run must share."""
    names = (
      *("strategy", "network", "imitation_steps", "samples", "elite"),
      *("learning_rate", "entropy", "seed"),
    )
    return {name: dataclasses.asdict(self)[name] for name in names}

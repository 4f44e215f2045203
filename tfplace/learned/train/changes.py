"""Tasks of policies that change placements: which ones."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator, Placer
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.learned.sampling import step_times
from tfplace.learned.train import demonstrations
from tfplace.learned.train.tasks import Task
from tfplace.placers import registry
from tfplace.placers.dask_workers import Workers
from tfplace.placers.search.annealing import best_first
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class ChangeConfig:
  """Placements to change.

  Attributes:
    rules: Strategies of whole steps; those of microbatched steps are
      `registry.MICROBATCHED`. The best placement of them is changed.
    rule_s: Limit on the seconds of each.
    searches: Evaluations of searches, each from what the one before found. What
      they find is changed, too: the bases of the placer are such placements,
      from its first second to its last.
    short_s: Limit on the seconds of each.
    long_s: Seconds of a last search; 0 for none. A resumed run keeps what the
      first one found, whatever its seconds.
    policy: Policy that `auto` asks in this search, which then begins anew, or
      "shipped"; None goes on by annealing, without a policy.
    seed: Seed of the searches.
    folder: Directory of results for a resumed run; None for none.
  """

  rules: Sequence[str] = ("single", "expert", "axes", "metis", "heft")
  rule_s: float = 5.0
  searches: tuple[int, ...] = (150, 2000)
  short_s: float = 6.0
  long_s: float = dataclasses.field(default=0.0, repr=False)
  policy: str | None = None
  seed: int = 0
  folder: str | None = None


def change_tasks(
  decisions: Decisions,
  evaluator: Evaluator,
  config: ChangeConfig | None = None,
  workers: Workers | None = None,
) -> list[Task]:
  """Creates a task for each placement to change.

  Raises:
    InfeasibleError: No placement fits in memory.
    TrainingError: A file in the folder cannot be read or written.
  """
  config = config or ChangeConfig()
  problem = decisions.problem
  # The placements are the same at any number of decisions.
  known = demonstrations.kept(
    group_decisions(problem), config, lambda: {"bases": find(problem, config)}
  )
  tasks = []
  for base in known["bases"]:
    based = decisions.based_on(base)
    (base_us,) = step_times(evaluator, base[None])
    task = Task(
      based,
      evaluator,
      float(base_us),
      based.base_choices,
      workers=workers,
    )
    task.evaluate(based.base_choices[None])
    tasks.append(task)
  return tasks


def find(problem: Problem, config: ChangeConfig) -> np.ndarray:
  """Finds [?, num_ops] distinct placements by rules and searches.

  Raises:
    InfeasibleError: No placement fits in memory.
  """
  simulator = Simulator(problem)
  found = [_by_rules(problem, simulator, config)]

  def search(placer: Placer, budget: Budget) -> None:
    found.append(placer.place(problem, simulator, budget, config.seed))

  def annealing() -> Placer:
    start = found[-1].placement.devices[None]
    return registry.get_placer("annealing", start=start)

  for evaluations in config.searches:
    search(annealing(), Budget(config.short_s, evaluations))
  if config.long_s > 0.0 and config.policy is None:
    search(annealing(), Budget(config.long_s))
  elif config.long_s > 0.0:
    # A policy gains less on what annealing has changed than on rules.
    asked = None if config.policy == policies.SHIPPED_NAME else config.policy
    search(registry.get_placer("auto", asked), Budget(config.long_s))
  return np.stack([result.placement.devices for result in best_first(found)])


def _by_rules(
  problem: Problem, simulator: Simulator, config: ChangeConfig
) -> Result:
  """Returns the best result of the rules."""
  is_split = problem.graph.num_microbatches > 1
  found: list[Result] = []
  failure: TfplaceError | None = None
  for name in registry.MICROBATCHED if is_split else config.rules:
    placer, budget = registry.get_placer(name), Budget(config.rule_s)
    try:
      found.append(placer.place(problem, simulator, budget, config.seed))
    except TfplaceError as error:  # It may need more devices or memory.
      failure = error
  if not found:
    raise failure or InfeasibleError("there is no placement to change")
  return best_first(found)[0]

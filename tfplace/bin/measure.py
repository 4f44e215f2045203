"""tfplace-measure: runs a placed graph on real devices and times it.

Times steps on --cluster (workers:N, gpus, a hosts file or a cluster resolver)
after a warm-up, and writes the measured evaluation.
"""

import functools
import math
import sys
import time

from absl import flags

from tfplace import bounds, formats
from tfplace.bin import cli, outputs, sources, tasks
from tfplace.graph import Evaluation, Problem


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values)
  cli.define_all(
    values,
    {
      "placement": "tfplace.placement.v1 file.",
      "output": "tfplace.evaluation.v1 file to write.",
    },
  )
  cli.define(
    values, "steps", "Most timed steps; timing stops after 5 s.", 10, least=1
  )
  sources.define_measure_s_flag(values)
  cli.define_json(values, "evaluation")


def _check(values: flags.FlagValues) -> None:
  cli.check_writable(values)
  if sources.chosen_source(values) == "graph":
    raise cli.UsageError(
      "--graph has only costs; name the TensorFlow model to run"
    )
  cluster = cli.required(values, "cluster")
  if not sources.is_live(cluster):
    raise cli.UsageError(
      f"--cluster={cluster} has no real devices; use workers:N, gpus, a"
      " tfplace.hosts.v1 file, tf_config or slurm"
    )
  cli.required(values, "placement")


def _measure(values: flags.FlagValues) -> None:
  _check(values)
  began = time.perf_counter()
  with sources.opened_cluster(values) as (cluster, live):
    graph, traced = sources.load_source(values, cluster, needs_trace=True)
    problem = bounds.tightened(Problem(graph, cluster))
    placement = formats.load_placement(values.placement, problem)
    problem = placement.problem  # In the placement's order.
    assert live is not None and traced is not None  # By `_check`.
    what = f"Measuring {problem.graph.name}"
    with cli.showing_progress(what, in_lines=True) as on_stage:
      harness = live.harness(
        problem,
        traced,
        steps=values.steps,
        measure_s=values.measure_s or math.inf,
        on_stage=on_stage,
        allow_side_effects=values.allow_side_effects,
      )
      evaluation = harness.evaluate([placement])[0]
  _report(values, evaluation, time.perf_counter() - began)


def _report(
  values: flags.FlagValues, evaluation: Evaluation, seconds: float
) -> None:
  bound_us, ratio = evaluation.lower_bound_us, evaluation.ratio_to_bound
  if values.output:
    formats.save_evaluation(evaluation, values.output)
  if "error" in evaluation.extra:
    print(f"not measured: {evaluation.extra['error']}")
  else:
    timed = len(evaluation.extra["step_times_us"])
    count = f"{timed} of {values.steps}" if timed < values.steps else f"{timed}"
    time_ms = evaluation.step_time_us / 1e3
    print(f"measured step time: {time_ms:.3f} ms, the median of {count} steps")
    if ratio is None:
      print("no lower bound is known")
    else:
      print(
        f"{ratio:.2f} times the lower bound that is proven for the estimated"
        f" costs, {bound_us / 1e3:.3f} ms"
      )
  if values.json:
    outputs.print_evaluation(
      evaluation.with_extra(
        strategy="placement", seconds=seconds, evaluations=1
      )
    )


_main = functools.partial(tasks.run, "tfplace-measure", _measure)
run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())

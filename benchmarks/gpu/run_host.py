"""Every placer on this host's own devices: measured beside predicted steps.

One command on a host with GPUs: measures op costs and links, places zoo
models with each placer, runs every placement in a process of its own, and
prints what the simulator predicted and what the devices took. One GPU is
enough: `--logical_gpus=4` splits it, with memory limits (its parts share one
chip, so that two of them together are no faster than it is). Without a GPU
the same runs on local worker processes. Writes JSON, pictures, and for each
model a trace of its fastest placement, simulated and measured, for
https://ui.perfetto.dev.

  python -m benchmarks.gpu.run_host --models=inception_v3,nmt
  python -m benchmarks.gpu.run_host --logical_gpus=4 --budget_s=10
"""

import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks.lib import command
from benchmarks.lib.command import Options
from tfplace import placers
from tfplace.bin import cli, sources
from tfplace.errors import TfplaceError
from tfplace.formats.json_file import write_json

if TYPE_CHECKING:
  from tfplace import measure


OPTIONS = Options("run_host", __doc__)
OPTIONS.add("models", ["inception_v3", "nmt"], "Models of the zoo.")
OPTIONS.add("model_sizes", [], "Sizes of them all, such as length=20.")
OPTIONS.add("strategies", list(placers.READY), "Placers.")
for _name, _default, _least, _text in (
  ("batch_size", None, 1, "Examples per step; the model's own by default."),
  ("logical_gpus", None, 1, "Split the first GPU into so many."),
  ("logical_gpu_mib", None, 1, "Memory of each; an equal share by default."),
  ("steps", 10, 1, "Timed steps of each placement; the median counts."),
  ("warmup", 3, 0, "Steps before the clock."),
  ("seed", 0, 0, "Fixes every random choice."),
):
  OPTIONS.add(_name, _default, _text, least=_least, kind=int)
OPTIONS.add("budget_s", 20.0, "Seconds for each search.", least=0)
OPTIONS.add(
  "timeout_s", 300.0, "Seconds until a placement counts as hanging.", least=0
)
OPTIONS.add(
  "cluster",
  None,
  "gpus, gpus:N or workers:N; this host's GPUs by default, or workers:2 where"
  " it has none.",
)
OPTIONS.out("gpu_host.json")


def main(values: flags.FlagValues) -> None:
  """Checks the flags, then runs every model."""
  cli.check_writable(values.out)
  cli.load_tensorflow()
  from tfplace import measure

  sizes = sources.model_sizes(values)
  cluster, options = chosen_cluster(values)
  check_names(values)
  with (
    cli.showing_progress(f"Starting {cluster}"),
    measure.open_cluster(cluster, **options) as live,
  ):
    run(values, live, sizes)


def chosen_cluster(values: flags.FlagValues) -> tuple[str, dict[str, Any]]:
  """The name of the cluster and the options of its processes.

  Raises:
    UsageError: flags that do not go together.
  """
  import tensorflow as tf

  from tfplace import measure

  measure.leave_gpus()  # to the processes that measure
  has_gpu = bool(tf.config.list_physical_devices("GPU"))
  logical, mib = values.logical_gpus, values.logical_gpu_mib
  if mib is not None and logical is None:
    raise cli.UsageError("--logical_gpu_mib needs --logical_gpus")
  if logical is None:
    return values.cluster or ("gpus" if has_gpu else "workers:2"), {}
  if values.cluster not in (None, "gpus"):
    raise cli.UsageError(
      f"--logical_gpus={logical} splits a GPU, and --cluster={values.cluster}"
      " names other devices; give one of the two"
    )
  return f"gpus:{logical}", {} if mib is None else {"memory_bytes": mib * 2**20}


def check_names(values: flags.FlagValues) -> None:
  """Refuses unknown models and placers before anything is measured."""
  from tfplace import models

  known = {
    "models": [*models.MODELS, *models.VARIANTS, *models.INDEXED],
    "strategies": list(placers.STRATEGIES),
  }
  for flag, choices in known.items():
    if not values[flag].value:
      raise cli.UsageError(f"--{flag} names none")
    command.check_names(flag, values[flag].value, choices)


def run(
  values: flags.FlagValues, live: "measure.OpenCluster", sizes: dict[str, int]
) -> None:
  """Runs the models one after the other; saves after each placement."""
  from benchmarks.gpu import host_report as report
  from benchmarks.gpu import host_runs as running

  found = report.about(live.cluster)
  out = pathlib.Path(values.out)
  for name in values.models:
    model = found["models"][name] = {"rows": {}}
    try:
      for _ in running.fill_in(values, live, name, sizes, model):
        write_json(out, found)
    except TfplaceError as error:  # this model's; the others go on
      model["error"] = str(error)
    write_json(out, found)
    report.print_model(name, model)
  report.draw(found, out)
  print(f"wrote {out} and its pictures and traces beside it")


if __name__ == "__main__":
  OPTIONS.run(main)

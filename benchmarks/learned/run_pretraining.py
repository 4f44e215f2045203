"""The curve of a run of tfplace-train, from the scalars that it has logged.

Plots the step time of the policy's samples over that of the best one-shot
placement, geometric means over graphs and samples, in bins of iterations.
Placements that do not fit count as in the run's rewards. Writes JSON and a
picture.

  python -m benchmarks.learned.run_pretraining --checkpoint_dir=C
"""

import glob
import os
import pathlib

import numpy as np
from absl import flags
from matplotlib.figure import Figure

from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.formats.json_file import write_json

OPTIONS = Options("run_pretraining", __doc__)
_CHECKPOINTS = OPTIONS.add("checkpoint_dir", None, "That of the run.")
_BIN = OPTIONS.add("bin", 500, "Iterations per point.", 1)
_OUT = OPTIONS.out("pretraining.json")


def rewards(folder: str) -> dict[int, float]:
  """Mean reward of every PPO iteration, by its number.

  Where a run went on from a checkpoint, what was done again counts once.
  """
  import tensorflow as tf

  found = {}
  for path in sorted(glob.glob(os.path.join(folder, "logs", "events*"))):
    for event in tf.compat.v1.train.summary_iterator(path):
      for value in event.summary.value:
        if value.tag.endswith("/reward"):
          found[event.step] = float(tf.make_ndarray(value.tensor))
  return found


def curve(found: dict[int, float], size: int) -> list[tuple[int, float]]:
  """(Iterations done, geometric mean of step time / baseline) of each bin."""
  steps = sorted(found)
  bins = [steps[i : i + size] for i in range(0, len(steps), size)]
  return [
    (
      done[-1] - steps[0] + 1,
      float(np.exp(-np.mean([found[step] for step in done]))),
    )
    for done in bins
    if len(done) == size or len(bins) == 1
  ]


def draw(points: list[tuple[int, float]], path: pathlib.Path) -> None:
  figure = Figure(figsize=(6, 3.5), layout="constrained")
  panel = figure.subplots()
  panel.plot(*zip(*points, strict=True))
  panel.axhline(1.0, color="gray", linewidth=0.8)
  panel.set(
    xlabel="PPO iterations",
    ylabel="samples / best one-shot placement",
    title="Step times on the training graphs",
  )
  figure.savefig(path, dpi=100)


def main(values: flags.FlagValues) -> None:
  found = rewards(cli.required(values, "checkpoint_dir"))
  if not found:
    raise cli.UsageError(
      f"--checkpoint_dir={_CHECKPOINTS.value} has no log of PPO iterations"
    )
  points = curve(found, _BIN.value)
  out = pathlib.Path(_OUT.value)
  os.makedirs(out.parent, exist_ok=True)
  write_json(out, {"bin": _BIN.value, "points": points})
  draw(points, out.with_suffix(".png"))
  print(f"{points[0][1]:.3f} at first, {points[-1][1]:.3f} at last")


if __name__ == "__main__":
  OPTIONS.run(main)

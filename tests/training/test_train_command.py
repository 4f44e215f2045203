"""tfplace-train: flags, SIGKILL and resume, export."""

import json
import os
import re
import signal
import subprocess
import time

import numpy as np
import psutil
import pytest

from tests.testing import train_commands
from tests.testing.policy_problems import gpus, random_graph
from tests.testing.slow import SLOW
from tfplace import formats
from tfplace.bin import train
from tfplace.graph import Problem
from tfplace.learned.policies import load_policy
from tfplace.simulate import Simulator


@pytest.fixture
def tiny(tmp_path):
  save_tiny(tmp_path)
  return tmp_path


def save_tiny(folder):
  graph = random_graph(10, seed=3, name="tiny")
  formats.save_graph(graph, folder / "tiny.json")
  formats.save_cluster(gpus(3), folder / "cluster.json")


def start(tiny, name, *more):
  command = train_commands.train_command(
    tiny,
    f"--checkpoint_dir={tiny / name}",
    f"--export_dir={tiny / name}_policy",
    "--strategy=rnn",
    "--iterations=8",
    "--imitation_steps=3",
    "--samples=4",
    "--checkpoint_every=2",
    *more,
  )
  return subprocess.Popen(
    command,
    env=train_commands.environment(),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(process):
  out, err = process.communicate(timeout=280)
  assert process.returncode == 0, err[-3000:]
  return out


def newest_checkpoint(folder):
  """Number in the checkpoint index, or -1."""
  try:
    text = (folder / "checkpoint").read_text()
  except FileNotFoundError:
    return -1
  return int(text.split('"')[1].rsplit("-", 1)[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Folder of a run that was not interrupted."""
  folder = tmp_path_factory.mktemp("whole")
  save_tiny(folder)
  finish(start(folder, "whole"))
  return folder


@SLOW
@train_commands.needs_extra_train
@pytest.mark.timeout(600)
def test_a_killed_run_resumes_to_an_equal_end(tiny, whole):
  killed = start(tiny, "killed", "--dask=local")
  while newest_checkpoint(tiny / "killed") < 4 and killed.poll() is None:
    time.sleep(0.02)
  children = psutil.Process(killed.pid).children(recursive=True)
  killed.send_signal(signal.SIGKILL)
  killed.communicate()
  assert killed.returncode == -signal.SIGKILL  # it was not done yet
  assert not os.path.exists(tiny / "killed_policy")
  assert not psutil.wait_procs(children, timeout=30)[1]  # Workers end, too.
  out = finish(start(tiny, "killed"))  # Dask or not makes no other run.
  assert "continuing after step" in out
  expected, found = (
    load_policy(path, "rnn").weights
    for path in (whole / "whole_policy", tiny / "killed_policy")
  )
  for a, b in zip(expected, found, strict=True):
    np.testing.assert_array_equal(a, b)
  placements = [
    json.loads(next((path / "placements").glob("*.json")).read_text())
    for path in (whole / "whole_policy", tiny / "killed_policy")
  ]
  assert placements[0] == placements[1]


@train_commands.needs_extra_train
def test_scalars_of_a_run_are_read_by_tensorboard(whole):
  """3 steps of imitation, then 8 of training; the best was exported."""
  scalars = scalars_of(whole / "whole" / "logs")
  (task,) = {tag.rsplit("/", 1)[0] for tag in scalars}
  assert re.fullmatch(r"tiny on \w+, \d+ decisions", task)
  assert scalars[f"{task}/imitation_loss"][0] == list(range(3))
  for name in ("reward", "entropy", "policy_loss"):
    steps, values = scalars[f"{task}/{name}"]
    assert steps == list(range(3, 11))
    assert np.isfinite(values).all()
  _, best = scalars[f"{task}/best_step_time_us"]
  assert best == sorted(best, reverse=True)
  problem = Problem(
    formats.load_graph(whole / "tiny.json"),
    formats.load_cluster(whole / "cluster.json"),
  )
  (path,) = (whole / "whole_policy" / "placements").glob("*.json")
  placement = formats.load_placement(path, problem)
  (evaluation,) = Simulator(problem).evaluate([placement])
  assert best[-1] == pytest.approx(evaluation.step_time_us, rel=1e-6)


def scalars_of(folder):
  """Reads logs with TensorBoard's own reader: tag -> steps, values."""
  from tensorboard.backend.event_processing import event_accumulator
  from tensorboard.util import tensor_util

  events = event_accumulator.EventAccumulator(
    str(folder), size_guidance={"tensors": 0}
  )
  events.Reload()
  found = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
  return {
    tag: (
      [event.step for event in series],
      [float(tensor_util.make_ndarray(e.tensor_proto)) for e in series],
    )
    for tag, series in found.items()
  }


MEASURED = "--graphs= --models=nmt --reward=measure "


@pytest.mark.parametrize(
  "flags, words",
  [
    ("--strategy=gpd", ["gdp", "placeto", "hierarchical", "rnn"]),
    ("--graphs= --models=zz", ["unknown model 'zz'", "inception_v3"]),
    ("--graphs= --models=zz.keras", ["--models: there is no file 'zz.keras'"]),
    ("--graphs=zz.json", ["--graphs: there is no file 'zz.json'"]),
    ("--init_from=nowhere", ["'nowhere' holds no policy"]),
    ("--elite=1.5", ["elite's share", "1.5"]),
    ("--reward=guess", ["simulate", "measure"]),
    ("--elite=0", ["elite", "0"]),
    ("--graphs=/nowhere/*.json", ["/nowhere/*.json"]),
    ("--cluster=k81x2", ["k81x2"]),
    ("--graphs=", ["--models", "--graphs"]),
    ("--cluster=workers:2", ["workers:2"]),
    ("--strategy=placeto --elite=0.5", ["--elite=0.5", "not placeto"]),
    ("--microbatches=2", ["--microbatches=2", "split them with tfplace-ext"]),
    ("--max_in_flight=2", ["--max_in_flight=2", "traced already"]),
    ("--minutes=1 --iterations=9", ["--minutes=1", "--iterations=9"]),
    (
      "--max_decisions=9,many --graphs=/nowhere/*.json",
      ["--max_decisions: 'many' is not a number"],
    ),
    ("--recompute=all", ["--recompute=all is for the steps of"]),
    (
      f"{MEASURED}--cluster=workers:2 --microbatches=2",
      ["--microbatches=2", "needs --reward=simulate"],
    ),
    (
      f"{MEASURED}--cluster=workers:2 --dask=local",
      ["--dask=local", "--reward=simulate"],
    ),
    (f"{MEASURED}--cluster=k80x2", ["workers:N", "k80x2"]),
  ],
)
@train_commands.needs_extra_train
def test_bad_flag_is_one_line_and_exit_code_1(tiny, capsys, flags, words):
  arguments = train_commands.train_command(
    tiny, f"--checkpoint_dir={tiny / 'c'}", f"--export_dir={tiny / 'e'}"
  )[3:]
  names = {flag.split("=")[0] for flag in flags.split()}
  arguments = [a for a in arguments if a.split("=")[0] not in names]
  assert train.run([*arguments, *flags.split()]) == 1
  error = capsys.readouterr().err
  assert error.count("\n") == 1 and error.startswith("tfplace-train: error:")
  for word in words:
    assert word in error
  assert not (tiny / "c").exists() and not (tiny / "e").exists()


def test_a_missing_extra_is_named(tiny, capsys, monkeypatch):
  monkeypatch.setattr("tfplace.training.process.PACKAGES", ("no_such_package",))
  arguments = train_commands.train_command(
    tiny, f"--checkpoint_dir={tiny / 'c'}", f"--export_dir={tiny / 'e'}"
  )[3:]
  assert train.run(arguments) == 1
  error = capsys.readouterr().err
  assert "no_such_package" in error and "tfplace[train]" in error

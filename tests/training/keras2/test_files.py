"""Damaged files, a full disk and sudden ends: an error that names the path,
and never half of a policy.
"""

import json
import os
import resource
import signal

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.errors import TrainingError
from tfplace.formats import files
from tfplace.learned.decisions import group_decisions
from tfplace.learned.policy_format import INFO_FILE
from tfplace.simulate import Simulator
from tfplace.training import export, targets
from tfplace.training.checkpoints import Checkpoints, JsonState
from tfplace.training.config import TrainConfig

DAMAGES = ("empty", "cut", "flipped", "folder")
NEWEST = ("checkpoint", "ckpt-2.index", "ckpt-2.data-00000-of-00001")


def damage(path, how):
  content = path.read_bytes()
  half = len(content) // 2
  path.unlink()
  if how == "folder":
    path.mkdir()
    return
  path.write_bytes(
    {
      "empty": b"",
      "cut": content[:half],
      "flipped": content[:half]
      + bytes([content[half] ^ 1])
      + content[half + 1 :],
    }[how]
  )


def run_of(folder, size=1000):
  """Checkpoints of a run with one variable."""
  variable = tf.Variable(tf.zeros(size))
  state = JsonState({"done": 0})
  kept = Checkpoints(folder, {"variable": variable}, state, {"seed": 1})
  return kept, variable, state


def saved_run(folder, size=1000):
  kept, variable, state = run_of(folder, size)
  for number in (1, 2):
    variable.assign(tf.fill([size], float(number)))
    state.value["done"] = number
    kept.save(number)
  return kept, variable, state


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", NEWEST)
def test_a_damaged_checkpoint_is_named_and_not_taken_for_none(
  tmp_path, name, how
):
  saved_run(tmp_path)
  damage(tmp_path / name, how)
  with pytest.raises(TrainingError) as caught:
    run_of(tmp_path)[0].restore()
  assert f"'{tmp_path}/{name.split('.')[0]}" in str(caught.value)
  assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_checkpoint_of_other_settings_is_rejected(tmp_path):
  def kept(settings):
    return Checkpoints(
      tmp_path, {}, JsonState({"done": 0}), {"settings": settings}
    )

  settings = {"network": {"units": 64, "types": ("MatMul",)}}
  kept(settings).save(1)
  assert kept(settings).restore()
  for other in ({"network": {"units": 64}}, {**settings, "seed": 1}):
    with pytest.raises(TrainingError, match="its settings is"):
      kept(other).restore()


@pytest.fixture
def small_disk():
  """No file may grow beyond 20 kB: the kernel refuses, as on a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  signals = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, before)
  signal.signal(signal.SIGXFSZ, signals)


def test_a_checkpoint_that_does_not_fit_leaves_the_last_one(tmp_path, request):
  size = 100_000
  kept, variable, state = saved_run(tmp_path, size)
  request.getfixturevalue("small_disk")
  state.value["done"] = 3
  with pytest.raises(TrainingError, match=f"'{tmp_path}' cannot be written"):
    kept.save(3)
  again, variable, state = run_of(tmp_path, size)
  assert again.restore()
  assert state.value["done"] == 2 and float(variable[0]) == 2.0


def demonstrated(tmp_path):
  # Large enough that the middle of the file is in the array of devices.
  problem = problem_of(random_graph(100, seed=1), gpus(2))
  config = TrainConfig("gdp", str(tmp_path))
  decisions = group_decisions(problem)
  return targets.imitation_task(decisions, Simulator(problem), config).target


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_demonstrations_are_named(tmp_path, how):
  expected = demonstrated(tmp_path)
  np.testing.assert_array_equal(demonstrated(tmp_path), expected)
  (path,) = (tmp_path / "teachers").iterdir()
  damage(path, how)
  with pytest.raises(TrainingError, match=f"'{path}' cannot be read"):
    demonstrated(tmp_path)


def test_demonstrations_that_cannot_be_written_are_named(tmp_path, monkeypatch):
  def full(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(TrainingError, match=r"teachers/.*No space left"):
    demonstrated(tmp_path)
  assert list((tmp_path / "teachers").iterdir()) == []


# Exported policies.


def content(folder):
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file()
  }


def test_a_policy_that_does_not_fit_leaves_the_old_one(
  tmp_path, policy, request
):
  export.export_policy(policy, tmp_path / "policy")
  before = content(tmp_path / "policy")
  request.getfixturevalue("small_disk")
  with pytest.raises(TrainingError, match=f"'{tmp_path}/policy' cannot be"):
    export.export_policy(policy, tmp_path / "policy")
  assert content(tmp_path / "policy") == before
  assert os.listdir(tmp_path) == ["policy"]


@pytest.mark.parametrize("error", [OSError(28, "No space"), "placement"])
def test_a_policy_comes_with_its_files_or_not_at_all(tmp_path, policy, error):
  def add(folder):
    (folder / "placements").mkdir()
    (folder / "placements" / "one").write_text("x")
    if isinstance(error, OSError):
      raise error
    files.write_bytes(folder / "none" / "x", b"")

  with pytest.raises(TrainingError, match=f"'{tmp_path}/policy' cannot be"):
    export.export_policy(policy, tmp_path / "policy", add)
  assert os.listdir(tmp_path) == []


def test_a_link_to_a_policy_stays_one(tmp_path, policy):
  (tmp_path / "there").mkdir()
  os.symlink(tmp_path / "there", tmp_path / "policy")
  export.export_policy(policy, tmp_path / "policy")
  assert os.path.islink(tmp_path / "policy")
  assert json.loads((tmp_path / "there" / INFO_FILE).read_text())

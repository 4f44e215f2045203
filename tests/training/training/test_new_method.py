"""A learned method is one folder and one line of `registry.STRATEGIES`."""

import os
import subprocess
import sys

import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.core.budget import Budget
from tfplace.errors import TrainingError
from tfplace.learned import policies
from tfplace.learned.train.config import Request
from tfplace.learned.train.trainer import finish, open_trainer
from tfplace.placers import registry

EACH_MODULE_FIRST = """
import importlib, pkgutil, sys
import tfplace.learned
names = [m.name for m in pkgutil.walk_packages(
  tfplace.learned.__path__, "tfplace.learned.")]
assert len(names) > 25
for name in names:
  for loaded in [m for m in sys.modules if m.startswith("tfplace.learned")]:
    del sys.modules[loaded]
  importlib.import_module(name)
"""


@pytest.fixture
def toy(monkeypatch):
  line = registry.Strategy("toy", "tests.training.toy", "learned")
  monkeypatch.setitem(registry.STRATEGIES, "toy", line)


@pytest.mark.usefixtures("toy")
def test_a_new_method_is_trained_resumed_exported_and_places(tmp_path):
  problem = problem_of(random_graph(20, seed=1), gpus(1, cpu=True))
  request = Request(
    str(tmp_path / "run"),
    str(tmp_path / "policy"),
    strategy="toy",
    iterations=1,
    imitation_steps=3,
    samples=4,
  )
  trainer = open_trainer([problem], request)
  assert trainer.config.method.samples == 4
  trainer.run()
  assert open_trainer([problem], request).done == 4
  finish(trainer, request)
  placer = registry.get_placer("toy", str(tmp_path / "policy"))
  result = placer.place(problem, Simulator(problem), Budget(9), 0)
  # A CPU takes four times as long, and one device saves all transfers.
  assert not result.placement.devices.any()
  with pytest.raises(TrainingError, match="'toy', not 'rnn'"):
    policies.load_policy(tmp_path / "policy", "rnn")
  with pytest.raises(TrainingError, match="no policy of strategy 'toy' ships"):
    registry.get_placer("toy").place(problem, Simulator(problem), Budget(9), 0)


def test_whatever_module_is_imported_first_there_is_no_circle():
  done = subprocess.run(
    [sys.executable, "-c", EACH_MODULE_FIRST],
    env=dict(os.environ),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]

"""Flags of a run, for each strategy and its exported policy."""

import types

import pytest

from tfplace.learned import learner_type
from tfplace.learned.policy_format import Exportable
from tfplace.learned.train import trainer
from tfplace.learned.train.config import Request
from tfplace.placers import LEARNED


def config_of(**flags):
  return Request("checkpoints", "export", **flags).config()


@pytest.mark.parametrize("strategy", LEARNED)
def test_what_is_not_said_is_the_strategy_s_own(strategy):
  own = learner_type(strategy).method_type()
  assert config_of(strategy=strategy).method == own


@pytest.mark.parametrize("strategy", LEARNED)
def test_flags_reach_every_strategy(strategy):
  found = config_of(
    strategy=strategy, learning_rate=0.5, entropy=0.25, elite=0.125, samples=6
  ).method
  assert (found.learning_rate, found.entropy) == (0.5, 0.25)
  assert (found.elite, found.samples) == (0.125, 6)


def test_the_exported_policy_says_how_it_was_trained(monkeypatch, tmp_path):
  written = []

  def export_policy(policy, target, add):
    written.append(policy)
    add(tmp_path)
    assert (tmp_path / "placements").is_dir()

  monkeypatch.setattr(trainer.export, "export_policy", export_policy)
  untold = Exportable("gdp", {}, [], {})
  learner = types.SimpleNamespace(exportable=lambda: untold)
  request = Request(
    "checkpoints",
    str(tmp_path / "policy"),
    max_decisions=(8, None),
  )
  trainer.finish(types.SimpleNamespace(learner=learner, tasks=[]), request)
  (policy,) = written
  assert policy.decisions == (8, None)

"""What the flags of a run mean to each strategy, and to what it exports."""

import types

from tfplace.learned.exported import Exportable
from tfplace.learned.train import session
from tfplace.learned.train.config import TrainConfig
from tfplace.learned.train.session import Request


def config_of(**flags):
  return Request("checkpoints", "export", **flags).config()


def test_what_is_not_said_is_the_strategy_s_own():
  found, own = config_of(), TrainConfig()
  for kind in ("ppo", "reinforce", "placeto"):
    assert getattr(found, kind) == getattr(own, kind)


def test_flags_reach_every_strategy():
  found = config_of(learning_rate=0.5, entropy=0.25, elite=0.125, samples=6)
  for kind in (found.ppo, found.reinforce):
    assert (kind.learning_rate, kind.entropy) == (0.5, 0.25)
    assert (kind.elite, kind.samples) == (0.125, 6)
  assert found.placeto.first_learning_rate == 0.5
  assert found.placeto.first_entropy == 0.25


def test_the_exported_policy_says_how_it_was_trained(monkeypatch, tmp_path):
  written = []

  def export_policy(policy, target, add):
    written.append(policy)
    add(tmp_path)
    assert (tmp_path / "placements").is_dir()

  monkeypatch.setattr(session.export, "export_policy", export_policy)
  untold = Exportable("gdp", 1, {}, [], {})
  learner = types.SimpleNamespace(exportable=lambda: untold)
  request = Request(
    "checkpoints",
    str(tmp_path / "policy"),
    max_decisions=(8, None),
    hints=(False, True),
  )
  session.finish(types.SimpleNamespace(learner=learner, tasks=[]), request)
  (policy,) = written
  assert (policy.decisions, policy.hints) == ((8, None), (False, True))

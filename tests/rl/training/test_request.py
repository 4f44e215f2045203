"""What the flags of a run mean to each strategy."""

from tfplace.rl.config import TrainConfig
from tfplace.rl.session import Request


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

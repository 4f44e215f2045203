"""tfplace-train --families: which members train, and under which names."""

import pytest

from tfplace.bin import cli, train
from tfplace.models import families


def test_members_that_train_are_listed_and_those_that_test_are_not():
  members = train._members(["ptb", "nmt"])
  assert len(members) == len(set(members)) == 2 * families.TRAINING
  assert ("nmt_family", "index=0") in members
  for index in families.split("test"):
    assert ("ptb", f"index={index}") not in members


def test_an_unknown_family_is_refused():
  with pytest.raises(cli.UsageError, match="'ptbb' is none of cifar10, ptb"):
    train._members(["ptbb"])


def test_a_member_is_extracted_once_and_has_a_name_of_its_own(
  tmp_path, monkeypatch
):
  """The command that extracts is replaced: it copies a tiny graph."""
  import policies_testing

  from tfplace import graph as graph_lib

  commands = []

  def run(command, **kwargs):
    commands.append(command)
    output = next(c for c in command if c.startswith("--output="))
    graph_lib.save_graph(
      policies_testing.random_graph(5, 0, name="ptb"), output.split("=", 1)[1]
    )
    return train.subprocess.CompletedProcess(command, 0, "", "")

  monkeypatch.setattr(train.subprocess, "run", run)
  given = ("ptb", "index=3", "k80x2", policies_testing.gpus(2), str(tmp_path))
  names = [train._extracted(*given).name for _ in range(2)]
  assert names == ["ptb.index=3"] * 2
  assert len(commands) == 1 and "--model_sizes=index=3" in commands[0]
  assert not list((tmp_path / "graphs").glob("*.part.*"))

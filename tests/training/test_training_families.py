"""Tasks of tfplace-train: members, and microbatched steps."""

import pytest
from absl import flags

from tfplace.bin import cli, training_graphs
from tfplace.models import families, zoo


def test_only_members_that_train_are_listed():
  with pytest.raises(cli.UsageError, match="'ptbb' is none of cifar10, ptb"):
    training_graphs._members(["ptbb"], 24)
  members = training_graphs._members(["ptb", "nmt"], 24)
  assert len(members) == len(set(members)) == 2 * families.TRAINING
  assert ("nmt_family", "index=0") in members
  for index in families.split("test"):
    assert ("ptb", f"index={index}") not in members


def test_the_training_split_has_no_row_of_the_published_tables():
  rows = {
    ("rnnlm", 2), ("rnnlm", 4), ("rnnlm", 8),
    ("gnmt", 2), ("gnmt", 4), ("gnmt", 8),
    ("transformer_xl", 2), ("transformer_xl", 4), ("transformer_xl", 8),
  }  # fmt: skip
  for model, sizes in families.TRAINING_SPLIT:
    assert model in zoo.MODELS
    assert model not in ("wavenet", "amoebanet_d", "nasnet")
    assert (model, sizes.get("layers")) not in rows
  listed = training_graphs._split(True)
  assert ("rnnlm", "layers=3,length=20") in listed
  assert len(listed) == len(families.TRAINING_SPLIT)
  assert training_graphs._split(False) == []


def test_a_member_is_extracted_once_and_named(tmp_path, monkeypatch):
  """The command that extracts is replaced: it copies a tiny graph."""
  from tests.testing import policy_problems
  from tfplace import formats

  commands = []

  def run(command, **kwargs):
    commands.append(command)
    output = next(c for c in command if c.startswith("--output="))
    formats.save_graph(
      policy_problems.random_graph(5, 0, name="ptb"), output.split("=", 1)[1]
    )
    return training_graphs.subprocess.CompletedProcess(command, 0, "", "")

  monkeypatch.setattr(training_graphs.subprocess, "run", run)
  cluster = ("k80x2", policy_problems.gpus(2))
  given = (str(tmp_path), [], "ptb", "index=3", *cluster)
  names = [training_graphs._extracted(*given).name for _ in range(2)]
  assert names == ["ptb.index=3"] * 2
  assert len(commands) == 1 and "--model_sizes=index=3" in commands[0]
  assert not list((tmp_path / "graphs").glob("*.part.*"))


def test_the_steps_of_models_are_split_into_microbatches(tmp_path):
  import keras

  inputs = keras.Input((4,), name="inputs")
  model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
  model.compile("sgd", "mse")
  model.save(tmp_path / "tiny.keras")
  values = flags.FlagValues()
  training_graphs.define(values)
  flags.DEFINE_string("checkpoint_dir", str(tmp_path), "", flag_values=values)
  arguments = [f"--models={tmp_path / 'tiny.keras'}", "--cluster=k80x2,k80x4"]
  values(["tfplace-train", *arguments, "--microbatches=4", "--max_in_flight=2"])
  training_graphs.check_microbatches(values)
  found = [problem.graph for problem in training_graphs.problems(values)]
  assert [graph.num_microbatches for graph in found] == [4, 4]
  names = {graph.name for graph in found}
  assert names == {"tiny.keras.microbatches=4.max_in_flight=2"}

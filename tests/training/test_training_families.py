"""Tasks of tfplace-train: models and microbatched steps."""

from absl import flags

from tfplace.bin import training_graphs


def test_a_model_is_extracted_once_and_named(tmp_path, monkeypatch):
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
  given = (str(tmp_path), [], "ptb", *cluster)
  names = [training_graphs._extracted(*given).name for _ in range(2)]
  assert names == ["ptb"] * 2
  assert len(commands) == 1 and "--model=ptb" in commands[0]
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

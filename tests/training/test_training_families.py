"""Tasks of tfplace-train: models and microbatched steps."""

from absl import flags

from tfplace.bin import training_graphs


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

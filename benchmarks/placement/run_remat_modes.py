"""`keras.RematScope` in each of its modes against tfplace's `recompute`.

For each model, on one GPU: simulated step time and peak of each mode, and the
fastest step of tfplace whose peak is no higher. tfplace's candidates are
"none", "all", the layers that `list_of_layers` names, and "auto" with the
mode's peak as the GPU's memory.

In a traced step, Keras' scope can only recompute layers whose `call` takes
nothing but inputs; any other raises an error. A mode that fails for this reason
is tried again without such layers, and without the model itself. The GPT of
`gpt_blocks` has one layer per block, so that `list_of_layers` can recompute it.
Prints a table and writes JSON.

  python -m benchmarks.placement.run_remat_modes
"""

import contextlib
import dataclasses
import fnmatch
import inspect
from typing import Any

from absl import flags
from rich import console, table

from benchmarks.lib import command
from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.errors import TfplaceError
from tfplace.formats.json_file import write_json

OPTIONS = Options("run_remat_modes", __doc__)
_MODELS = OPTIONS.add(
  "models", ["bert_small", "gpt_blocks", "resnet50_gn"], "Models; all."
)
_GPU = OPTIONS.add("gpu", "a100", "GPU of the presets.")
_OUT = OPTIONS.out("remat_modes.json")

# Layers that a user would name: whole blocks, or what is cheap and large.
LAYERS = {
  "bert_small": ["*_norm"],
  "gpt_blocks": ["block*"],
  "resnet50_gn": ["*_norm", "activation*"],
}
# Elements of an output; a tenth to a third of the layers have larger ones.
THRESHOLD = 2_000_000
MODES = ("full", "activations", "larger_than", "list_of_layers")
_HOST_BYTES = 64e6  # For inputs; the step must stay on the GPU.
_SLACK = 1.001  # Of a peak, for bytes that depend on the order of ops.


def build(name: str) -> tuple[Any, int]:
  """Returns the model and its batch size."""
  from benchmarks.models import reference

  if name != "gpt_blocks":
    trained = reference.MODELS[name]
    return trained.build(), trained.batch_size
  return _gpt_blocks(), reference.MODELS["gpt_small"].batch_size


def _gpt_blocks(
  depth: int = 4, units: int = 256, vocabulary: int = 32000, length: int = 256
) -> Any:
  """GPT as `reference.gpt`, with one layer per block."""
  import keras
  from keras import layers

  from benchmarks.models import reference

  def decoder_block(x: Any) -> Any:
    return reference._decoder_block(x, units, "", reference._feed_forward)

  class Block(layers.Layer):
    def build(self, shape: Any) -> None:
      x = keras.Input(shape[1:])
      scope: Any = contextlib.nullcontext()
      if self._remat_mode and self._remat_mode.mode != "activations":
        # The layers inside are recomputed with the block, not once more.
        scope = keras.RematScope(mode=None)
      with scope:
        self.inner = keras.Model(x, decoder_block(x))

    def call(self, x: Any) -> Any:
      return self.inner(x)

  tokens = keras.Input((length,), dtype="int32", name="tokens")
  words = layers.Embedding(vocabulary, units, name="words")(tokens)
  x = reference.Positions()(words)
  for i in range(depth):
    x = Block(name=f"block{i}")(x)
  x = layers.LayerNormalization(name="norm")(x)
  logits = layers.Dense(vocabulary, name="logits")(x)
  return reference._classifier(keras.Model(tokens, logits))


def scope_of(mode: str, names: list[str]) -> Any:
  """Returns the scope of a mode."""
  import keras

  if mode == "list_of_layers":
    return keras.RematScope(mode=mode, layer_names=names)
  if mode == "larger_than":
    return keras.RematScope(mode=mode, output_size_threshold=THRESHOLD)
  return keras.RematScope(mode=mode)


def without_keywords(model: Any) -> None:
  """Takes what Keras cannot recompute in a traced step out of the scope."""
  for layer in model._flatten_layers():
    signature = inspect.signature(layer.call)
    mode = layer._remat_mode
    is_activation = mode is not None and mode.mode == "activations"
    if len(signature.parameters) > 1 and not is_activation:
      layer._remat_mode = None


def simulated(model: Any, batch_size: int, recompute: Any) -> dict[str, Any]:
  """Simulates the step with everything on the GPU."""
  import tfplace
  from tfplace.core.presets import cluster_preset
  from tfplace.plan.estimate import cards, fits

  cluster = cluster_preset(f"{_GPU.value}x1")
  graph = tfplace.extract(
    model, cluster, batch_size=batch_size, recompute=recompute
  )
  one = fits.on_one_device(graph, cards.cluster_card(cluster))
  return {
    "step_time_us": one.schedule.step_time_us,
    "peak_memory_bytes": one.peak_memory_bytes,
  }


def of_mode(name: str, mode: str, names: list[str]) -> dict[str, Any]:
  """Simulates one mode of Keras' scope, as it is or where it can recompute."""
  import keras

  row: dict[str, Any] = {"mode": mode}
  for adapts in (False, True):
    keras.utils.clear_session()
    with scope_of(mode, names):
      model, batch_size = build(name)
    if adapts:
      without_keywords(model)
    try:
      return {**row, **simulated(model, batch_size, "none")}
    except TfplaceError as error:
      row["error" if adapts else "error_as_it_is"] = str(error)
  return row


def auto(model: Any, batch_size: int, limit: float) -> dict[str, Any]:
  """Plans with "auto" on a GPU of so many bytes."""
  import tfplace
  from tfplace.core.presets import cluster_preset

  whole = cluster_preset(f"{_GPU.value}x1")
  devices = tuple(
    dataclasses.replace(
      d, memory_bytes=limit if d.kind == "GPU" else _HOST_BYTES
    )
    for d in whole.devices
  )
  plan = tfplace.plan_model(
    model,
    dataclasses.replace(whole, devices=devices),
    strategy="single",
    recompute="auto",
    batch_size=batch_size,
    budget_s=5,
    costs="estimated",
    verbose=0,
  )
  evaluation = plan.evaluation
  assert evaluation is not None
  return {
    "step_time_us": evaluation.step_time_us,
    "peak_memory_bytes": max(evaluation.peak_memory_bytes.values()),
  }


def rows_of(name: str) -> dict[str, Any]:
  """Simulates a model in all modes and with all of tfplace's requests."""
  import keras

  model, batch_size = build(name)
  wanted = LAYERS[name]
  names = [
    layer.name
    for layer in model.layers
    if any(fnmatch.fnmatch(layer.name, pattern) for pattern in wanted)
  ]
  requests = {"none": "none", "all": "all", "list": wanted}
  found = {
    key: simulated(model, batch_size, request)
    for key, request in requests.items()
  }
  print(name, found, flush=True)
  modes = []
  for mode in MODES:
    row = of_mode(name, mode, names)
    peak = row.get("peak_memory_bytes")
    if peak is not None:
      keras.utils.clear_session()
      candidates = dict(found)
      with contextlib.suppress(TfplaceError):  # "auto" finds nothing that fits.
        own, _ = build(name)
        candidates["auto"] = auto(own, batch_size, peak * _SLACK)
      row["tfplace"] = {
        key: {"request": key, **one}
        for key, one in candidates.items()
        if one["peak_memory_bytes"] <= peak * _SLACK
      }
    modes.append(row)
    print(name, row, flush=True)
  return {"model": name, "layers": wanted, "tfplace": found, "modes": modes}


def best_of(row: dict[str, Any]) -> dict[str, Any] | None:
  """Returns the fastest of tfplace's steps within a mode's peak."""
  within = row.get("tfplace", {}).values()
  return min(within, key=lambda one: one["step_time_us"], default=None)


def print_table(models: list[dict[str, Any]]) -> None:
  """Prints a row per model and mode."""
  grid = table.Table(title=f"Recomputation on one {_GPU.value}, simulated")
  for column in ("model", "mode", "ms", "MB", "tfplace", "ms", "MB", "ratio"):
    grid.add_column(column, justify="right")
  for model in models:
    for row in model["modes"]:
      texts = [model["model"], row["mode"]]
      best = best_of(row)
      if "step_time_us" not in row:
        texts.append("fails")
      else:
        texts += _figures(row)
      if best is not None:
        ratio = best["step_time_us"] / row["step_time_us"]
        texts += [best["request"], *_figures(best), f"{ratio:.3f}"]
      grid.add_row(*texts)
  console.Console(width=100).print(grid)


def _figures(row: dict[str, Any]) -> list[str]:
  return [
    f"{row['step_time_us'] / 1e3:.1f}",
    f"{row['peak_memory_bytes'] / 1e6:,.0f}",
  ]


def main(_: flags.FlagValues) -> None:
  cli.load_tensorflow()
  command.check_names("models", _MODELS.value, LAYERS)
  rows = []
  for name in _MODELS.value or LAYERS:
    rows.append(rows_of(name))
    write_json(_OUT.value, {"gpu": _GPU.value, "models": rows})
  print_table(rows)


if __name__ == "__main__":
  OPTIONS.run(main)

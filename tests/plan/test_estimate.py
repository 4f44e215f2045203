"""Estimates: sizes, peaks, smallest fits and the largest batch."""

import dataclasses

import keras
import pytest

import tfplace
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph import OpSpec, build_graph
from tfplace.graph.cluster import with_max_memory
from tfplace.hardware.hardware import GPUS
from tfplace.hardware.presets import cluster_preset
from tfplace.plan.estimate import batch, cards, fits


def dense(compiled=True, dtype=None):
  """A model of 8 * 4 + 4 trainable and 2 * 4 + 2 frozen parameters."""
  model = keras.Sequential(
    [
      keras.Input((8,)),
      keras.layers.Dense(4, activation="relu", name="a", dtype=dtype),
      keras.layers.Dense(2, name="b", trainable=False, dtype=dtype),
    ],
    name="small",
  )
  if compiled:
    model.compile("adam", "mse", jit_compile=False)
  return model


def chain(depth, activation=None):
  hidden = [
    keras.layers.Dense(64, activation=activation, name=f"layer_{i}")
    for i in range(depth)
  ]
  model = keras.Sequential([keras.Input((64,)), *hidden])
  model.compile("sgd", "mse", jit_compile=False)
  return model


def cluster(memory_bytes, count=1):
  """One or several GPUs of a V100's speed, with little memory."""
  whole = cluster_preset(f"v100x{count}")
  devices = tuple(
    dataclasses.replace(d, memory_bytes=float(memory_bytes))
    if d.kind == "GPU"
    else d
    for d in whole.devices
  )
  return dataclasses.replace(whole, name="small", devices=devices)


@pytest.fixture(scope="module")
def found():
  return tfplace.estimate(dense(), batch_size=4)


def test_parameters_are_those_of_the_summary(found):
  # Adam: two slots of 36 scalars, a rate (float32) and a counter (int64 or 32).
  weights = found.steps[0].weights
  assert (weights.trainable_count, weights.non_trainable_count) == (36, 10)
  assert (weights.trainable_bytes, weights.non_trainable_bytes) == (144, 40)
  assert weights.optimizer_count == 2 * 36 + 2
  assert found.steps[0].gradient_bytes == 144
  lines = []
  dense().summary(print_fn=lambda text, **_: lines.append(text))
  assert "Total params: 46 (184.00 B)" in "".join(lines)


def test_a_graph_file_is_estimated_as_its_model(tmp_path):
  path = str(tmp_path / "g.json.gz")
  options = {"batch_size": 4, "microbatches": 2}
  graph = tfplace.extract(dense(), "v100x2", **options)
  tfplace.save_graph(graph, path)
  found = tfplace.estimate(path, "v100x2")
  model = tfplace.estimate(dense(), "v100x2", **options)
  assert (found.batch_size, found.training) == (4, True)
  assert found.steps[0].cards == model.steps[0].cards
  assert found.steps[0].variants == ("microbatches",)
  assert found.steps[0].peak.num_bytes == model.steps[0].peak.num_bytes
  with pytest.raises(TfplaceError, match="batch_size is 8, and"):
    tfplace.estimate(path, "v100x2", batch_size=8)
  with pytest.raises(TfplaceError, match="no model to trace"):
    tfplace.largest_batch(path, "v100x2")
  unknown = {k: v for k, v in graph.extra.items() if k == "microbatches"}
  tfplace.save_graph(dataclasses.replace(graph, extra=unknown), path)
  found = tfplace.estimate(path, "v100x2")
  assert str(found).splitlines()[0].endswith(", training step")


def test_cards_are_presets_or_kinds_of_a_cluster(found):
  assert [card.name for card in found.steps[0].cards] == list(GPUS)
  mixed = tfplace.estimate(dense(), "v100x1+p100x2", batch_size=4).steps[0]
  rows = {card.name: card for card in found.steps[0].cards}
  for card, gpu in zip(mixed.cards, ["v100", "p100"], strict=True):
    assert card.name == f"v100x1+p100x2: GPU-{gpu}"
    assert card.step_time_us == rows[gpu].step_time_us
    assert card.memory_bytes == rows[gpu].memory_bytes


def test_the_largest_batch_uses_all_kinds_of_gpus():
  limits = {"GPU:0": 6_000, "GPU:1": 6_000}
  alone = with_max_memory(cluster_preset("v100x1"), {"GPU:0": 6_000})
  mixed = with_max_memory(cluster_preset("v100x1+p100x1"), limits)
  found = tfplace.largest_batch(dense(), mixed, batch_size=8)
  small = tfplace.largest_batch(dense(), alone, batch_size=8)
  assert found.batch_size > small.batch_size


def test_row_is_the_simulation_of_one_device(found):
  own = cluster_preset("p100x1")
  graph = tfplace.extract(dense(), own, batch_size=4)
  result = tfplace.place(tfplace.Problem(graph, own), "single")
  rows = {card.name: card for card in found.steps[0].cards}
  assert rows["p100"].step_time_us == result.evaluation.step_time_us
  peaks = result.evaluation.peak_memory_bytes.values()
  assert rows["p100"].peak_memory_bytes == max(peaks)
  assert 0 < rows["p100"].share_of_peak < 1


def test_parts_sum_to_the_peak_of_the_simulator(found):
  peak = found.steps[0].peak
  rows = {card.name: card for card in found.steps[0].cards}
  assert sum(peak.parts.values()) == peak.num_bytes
  assert peak.num_bytes == rows[peak.device].peak_memory_bytes
  assert peak.parts["trainable"] == 144
  assert peak.parts["non_trainable"] == 40


def test_step_that_does_not_fit_gets_devices_or_microbatches():
  model = chain(6)
  whole = tfplace.estimate(model, cluster(1e9), batch_size=512, compile="none")
  need = whole.steps[0].peak.num_bytes
  assert whole.steps[0].variants == ("whole",)
  small = cluster(0.7 * need, count=4)
  step = tfplace.estimate(model, small, batch_size=512, compile="none").steps[0]
  (card,) = step.cards
  assert not card.fits
  assert step.num_ops == whole.steps[0].num_ops
  several, split = card.smallest_of("whole"), card.smallest_of("microbatches")
  assert several.num_devices > 1
  assert several.peak_memory_bytes <= 0.7 * need
  assert (split.num_devices, split.max_in_flight) == (1, 1)
  assert split.microbatches > 1
  assert split.peak_memory_bytes <= 0.7 * need
  assert step.variants == ("whole", "recomputation", "microbatches")
  assert card.smallest_of("recomputation").num_devices <= several.num_devices


def test_host_memory_does_not_make_a_step_fit():
  graph = build_graph(
    "g",
    [OpSpec("a", "X", {"GPU": 1.0, "CPU": 1.0}, persistent_bytes=100.0)],
    [],
  )
  card = cards.cluster_card(cluster(50))
  one = fits.on_one_device(graph, card)
  assert not one.fits
  assert fits.placed(graph, card.cluster, ["GPU"]) is None


@pytest.mark.parametrize("count", [1, 2])
def test_largest_batch_fits_and_the_next_does_not(count):
  devices = cluster(8_000, count)
  found = tfplace.largest_batch(dense(), devices, batch_size=16)
  assert found.peak_memory_bytes <= 8_000
  card = cards.cluster_card(devices)
  for size, fits_there in ((found.batch_size, True), (found.batch_size + 1, 0)):
    graph = tfplace.extract(dense(), devices, batch_size=size)
    one = fits.on_one_device(graph, card)
    several = count > 1 and fits.placed(graph, devices, ["GPU"])
    assert bool(one.fits or several) == bool(fits_there)


def test_largest_batch_names_what_is_missing():
  with pytest.raises(InfeasibleError, match="batch of 1 of 'small' does not"):
    tfplace.largest_batch(dense(), cluster(100))


@pytest.mark.parametrize("start", [1, 10, 119, 120, 500, 4096])
def test_the_largest_size_fits_and_the_next_was_tried(start):
  sizes = []

  def is_fitting(size):
    sizes.append(size)
    return size < 120

  assert batch.largest(is_fitting, start, 1) == 119
  assert {119, 120} <= set(sizes)
  assert len(sizes) <= 18


def test_nothing_or_everything_that_fits_is_told():
  assert batch.largest(lambda _: False, 9, 2) == 2
  assert batch.largest(lambda _: True, 9, 2) == 1 << 20


def test_mixed_precision_keeps_weights_and_shrinks_activations():
  model = chain(4, "relu")
  both = tfplace.estimate(
    model, "v100x1", batch_size=256, precisions=["float32", "mixed_float16"]
  )
  full, mixed = both.steps
  assert (full.precision, mixed.precision) == ("float32", "mixed_float16")
  assert full.weights.trainable_bytes == mixed.weights.trainable_bytes
  assert mixed.peak.parts["activations"] < full.peak.parts["activations"]
  assert model.dtype_policy.name == "float32"


def test_uncompiled_model_is_estimated_for_inference():
  found = tfplace.estimate(dense(compiled=False), "v100x1", batch_size=2)
  assert not found.training
  assert "compile it with loss and optimizer" in found.notes[0]
  assert found.steps[0].gradient_bytes == 0


@pytest.mark.parametrize(
  "arguments, words",
  [
    ({"precisions": ["half"]}, "unknown precision 'half'; choose from float32"),
    ({"sizes": {"x": 1}}, "sizes"),
    ({"model": 3}, "model is a int"),
  ],
)
def test_error_names_value_and_choices(arguments, words):
  given = {"model": dense(), **arguments}
  with pytest.raises(TfplaceError, match=words):
    tfplace.estimate(given.pop("model"), **given)

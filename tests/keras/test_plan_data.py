"""A plan as plain data: wished for, printed, drawn, edited, applied later."""

import json
import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import (
  ApplyError,
  ExtractionError,
  FormatError,
  InfeasibleError,
  TfplaceError,
)

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))


def plan_of(kind="two_inputs", **options):
  options = {"strategy": "m_etf", "batch_size": at.BATCH, **options}
  return tfplace.plan_model(at.build(kind), at.linked(), **options)


def devices_of(plan, layer):
  """Devices of the ops, gradients and variables of a layer."""
  return {
    device
    for name, device in plan.assignments.items()
    if re.search(rf"(^|/){layer}(_\d+)?/", name)
  }


def test_planning_alone_leaves_the_model_as_it_was():
  model = at.build("two_inputs")
  plan = tfplace.plan_model(
    model, at.linked(), strategy="m_etf", batch_size=at.BATCH
  )
  assert len(plan.devices) > 1
  assert not hasattr(model, "placement")
  assert {v.value.device for v in model.variables} == {CPUS[0]}
  expected = at.unplaced("two_inputs")
  np.testing.assert_array_equal(at.losses(model, "two_inputs"), expected)


def test_a_plan_is_applied_as_object_file_and_json_alike(tmp_path):
  plan = plan_of()
  plan.save(tmp_path / "p.json")
  content = json.loads((tmp_path / "p.json").read_text())
  data = json.loads(json.dumps(dict(plan.assignments)))
  for given in (plan, tmp_path / "p.json", content, data):
    model = tfplace.place_model(at.build("two_inputs"), placement=given)
    assert model.placement.assignments == plan.assignments
    assert model.get_layer("first").kernel.value.device in plan.devices
  edited = {**plan.layers, "second": "CPU:2"}
  model = tfplace.place_model(at.build("two_inputs"), placement=edited)
  with at.recorded() as ran:
    at.losses(model, "two_inputs", 1)
  assert at.devices_of(ran, "second") == {"CPU:2"}


@pytest.mark.parametrize(
  ("plan", "said"),
  [
    ([], "plan: "),
    ({}, "strategy"),
    ({"strategy": "auto", "compile": "yes"}, "compile is 'yes'"),
    ({"strategy": "auto", "variant": {"count": 0}}, "microbatches is 0"),
    ({"strategy": "auto", "notes": [3]}, r"notes\[0\]"),
  ],
)
def test_a_damaged_plan_file_is_named(plan, said, tmp_path):
  path = tmp_path / "p.json"
  data = {"format": "tfplace.placement.v1", "graph": "net", "plan": plan}
  path.write_text(json.dumps({**data, "assignments": {"a": "CPU:0"}}))
  with pytest.raises(TfplaceError, match=rf"p\.json: .*{said}"):
    tfplace.place_model(at.build("dense"), placement=path)


def test_a_printed_plan_names_every_device_with_its_layers():
  plan = plan_of(keep_together=["first", "second", "last"])
  lines = str(plan).splitlines()
  assert lines[0] == plan.message
  assert list(plan.layers) == ["first", "second", "joined", "last"]
  for layer in ("first", "second", "last"):
    (device,) = devices_of(plan, layer)
    assert plan.layers[layer] == device
  shown = {line.split()[0]: line for line in lines if line.startswith("CPU:")}
  assert {at.LOCAL + name for name in shown} >= set(plan.devices)
  for row in plan.device_rows:
    assert row.holds in shown[row.name]
  for note in plan.notes:
    assert f"- {note}" in lines


def test_a_plan_is_shown_in_notebooks_and_plotted(tmp_path):
  plan = plan_of()
  shown = []
  plan._repr_pretty_(types.SimpleNamespace(text=shown.append), False)
  assert shown == [str(plan)]
  path = tmp_path / "step.png"
  assert plan.plot(path)._repr_png_() and path.stat().st_size
  with pytest.raises(FormatError, match=r"a timeline is one of \.png"):
    plan.plot(tmp_path / "step.gif")
  # A plan of layers shows their devices.
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  lines = [line.split() for line in str(model.placement).splitlines()]
  assert all([layer, name] in lines for layer, name in at.SPLIT.items())
  with pytest.raises(ApplyError, match="'net' was not planned with costs"):
    model.placement.plot()


def test_what_is_kept_together_is_on_one_device():
  kind, sample = "two_inputs", at.batch("two_inputs")
  apart = plan_of(kind, sample=sample)
  assert len(devices_of(apart, "first")) > 1  # of BiasAddGrad and the rest
  plan = plan_of(kind, sample=sample, keep_together=["fi*t"])
  assert len(devices_of(plan, "first")) == 1
  plan = plan_of(kind, sample=sample, keep_together=[["first", "last"]])
  assert len(devices_of(plan, "first") | devices_of(plan, "last")) == 1
  assert len(plan.devices) > 1
  pattern = "gradient_tape/*"
  plan = plan_of(kind, sample=sample, keep_together=[pattern])
  found = {d for n, d in plan.assignments.items() if n.startswith(pattern[:-1])}
  assert len(found) == 1
  with pytest.raises(ApplyError, match=r"'frist'.* did you mean 'first'"):
    plan_of(kind, sample=sample, keep_together=["frist"])


def test_max_memory_divides_what_would_stay():
  free = plan_of(strategy="single")
  need = free.evaluation.peak_memory_bytes[CPUS[0]]
  limits = {f"CPU:{i}": 0.8 * need for i in range(3)}
  plan = plan_of(strategy="auto", budget_s=1, max_memory=limits)
  assert not plan.one_device and plan.single_device is None
  assert "no single device has the memory" in plan.message
  assert max(plan.evaluation.peak_memory_bytes.values()) <= 0.8 * need
  # A device of no memory holds nothing.
  plan = plan_of(max_memory={"CPU:0": 0})
  assert plan.evaluation.peak_memory_bytes[CPUS[0]] == 0
  assert len(plan.devices) > 1
  with pytest.raises(InfeasibleError):
    plan_of(max_memory=dict.fromkeys(limits, "1KB"))


def test_sequences_of_any_length_are_planned_with_a_sample():
  def build():
    keras.utils.set_random_seed(7)
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 4, name="embedding")(tokens)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(
      tokens, keras.layers.Dense(1, name="last")(x), name="net"
    )
    model.compile("sgd", "mse", jit_compile=False)
    return model

  def batches():
    shapes = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, 1))
    rows = [
      (np.ones((2, n), "int32"), np.ones((2, 1), "float32")) for n in (3, 5)
    ]
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=shapes)

  expected = build().fit(batches(), verbose=0).history["loss"]
  model = tfplace.place_model(build(), at.linked(), strategy="m_etf")
  with pytest.raises(ExtractionError, match=r"plan_model\(model, sample"):
    model.fit(batches(), verbose=0)
  sample = np.ones((2, 4), "int32"), np.ones((2, 1), "float32")
  model = build()
  plan = tfplace.plan_model(model, at.linked(), strategy="m_etf", sample=sample)
  got = tfplace.place_model(model, placement=plan).fit(batches(), verbose=0)
  np.testing.assert_allclose(got.history["loss"], expected, atol=1e-5)
  assert {v.value.device for v in model.variables} & set(CPUS[1:])


def test_xla_is_kept_where_the_model_stays_on_one_device():
  # Planned in the middle of the first fit.
  x, y = at.batch("dense")
  for strategy, jit in (("single", True), ("m_etf", False)):
    model = at.build("dense", compiled=False)
    model.compile(at.sgd(), "mse", jit_compile=True)
    tfplace.place_model(model, at.linked(), strategy=strategy)
    losses = model.fit(x, y, epochs=3, verbose=0, shuffle=False).history["loss"]
    assert model.jit_compile is jit and model.supports_jit is jit
    np.testing.assert_allclose(losses, at.unplaced("dense"), atol=1e-5)

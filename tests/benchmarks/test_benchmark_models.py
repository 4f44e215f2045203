"""Models of the benchmarks, and what is done with those of users."""

import math

import pytest

from benchmarks import models, run_measured, run_users_models


@pytest.mark.parametrize("name", models.SMALL)
def test_a_batch_fits_its_model(name):
  trained = models.SMALL[name]
  data = run_measured.batch(trained, seed=0)
  model = trained.build()
  model.set_weights([data[f"weight{i}"] for i in range(len(model.weights))])
  x, y = run_measured.sample(data)
  assert len(y) == trained.batch_size
  assert model.loss(y, model(x)) > 0
  again = run_measured.batch(trained, seed=0)
  assert all((again[key] == data[key]).all() for key in data)


def test_measured_steps_are_shown_beside_predicted_ones():
  def step(measured_us, **more):
    return {"measured_us": measured_us, **more}

  steps = {
    "one device": step(160e3),
    "one device, XLA": {"error": "no kernel"},
    "auto": step(120e3, predicted_us=108e3),
    "auto in 2": step(100e3, predicted_us=70e3),
    "auto in 4": step(130e3, predicted_us=130e3),
  }
  rows = {"gpt": {"steps": steps, "commit": "abc"}}
  text = run_measured.tables({"stamp": {}, "rows": rows})["measured"]
  # The fastest measured number of microbatches; errors of 10%, 30% and 0%.
  # Columns without a value are left out.
  assert "| model | one device | auto | microbatched | error |" in text
  assert "| gpt | 160.0 | 120.0 (108.0) | 100.0 (70.0) | 10% |" in text


def test_differences_of_losses_are_relative_and_of_equal_names():
  differences = run_users_models.differences
  one = [{"loss": 2.0, "d_loss": 0.0}, {"loss": 1.0, "d_loss": 4.0}]
  two = [{"loss": 2.0, "d_loss": 0.0}, {"loss": 1.0, "d_loss": 5.0}]
  assert differences(one, one) == [0.0, 0.0]
  assert differences(one, two) == pytest.approx([0.0, 0.2])
  assert differences(one, two[:1]) == []
  assert differences([{"loss": math.nan}], [{"loss": math.nan}]) == []

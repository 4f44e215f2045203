"""Split steps on workers: batches, and the ratios of what was measured."""

import numpy as np
import pytest

from benchmarks.microbatches import run_workers
from benchmarks.models import live


@pytest.mark.parametrize("name", run_workers.MODELS)
def test_the_batch_fits_the_model(name):
  build, batch_size, _ = live.KERAS[name]
  model = build()
  data = run_workers.batch(model, batch_size, seed=0)
  assert model.loss(data["y"], model(data["x"])) > 0
  again = run_workers.batch(model, batch_size, seed=0)
  np.testing.assert_array_equal(data["x"], again["x"])
  assert (data["y"] < model.output_shape[-1]).all()


def row(measured_us, losses, predicted_us=None):
  result = {
    "measured_us": measured_us,
    "quartiles_us": [measured_us, measured_us],
    "losses": losses,
  }
  return (
    result if predicted_us is None else {**result, "predicted_us": predicted_us}
  )


def rows(last_loss):
  return {
    "one worker": row(160e3, [2.0, 1.0], 150e3),
    "unsplit": row(120e3, [2.0, 1.0], 110e3),
    "2 microbatches": row(100e3, [2.0, 1.0], 90e3),
    "4 microbatches": row(130e3, [2.0, 1.0], 80e3),
    "MultiWorkerMirrored": row(110e3, [2.0, last_loss]),
  }


def test_ratios_are_to_the_best_split_step():
  found = run_workers.summary(rows(1.0001))
  assert found["best split"] == "2 microbatches"  # measured, not predicted
  assert found["one worker / split"] == pytest.approx(1.6)
  assert found["MultiWorkerMirrored / split"] == pytest.approx(1.1)
  assert found["error"] == pytest.approx(-0.1)
  assert found["all compute the same"]


def test_another_loss_is_seen():
  found = run_workers.summary(rows(1.01))
  assert found["loss difference"]["MultiWorkerMirrored"] == pytest.approx(0.01)
  assert not found["all compute the same"]


def test_the_table_has_what_was_predicted_beside_what_was_measured():
  result = rows(1.0)
  model = {"rows": result, "summary": run_workers.summary(result)}
  text = run_workers.markdown({"gpt": model})
  assert "| gpt | unsplit | 110.0 | 120.0 (120.0 to 120.0) | 1.20 |" in text
  assert "| gpt | MultiWorkerMirrored | - | 110.0 (" in text


def test_unknown_models_are_refused(tmp_path, capsys):
  flags = ["--models=vgg", f"--out={tmp_path / 'a.json'}"]
  assert run_workers.OPTIONS.call(run_workers.main, flags) == 1
  assert "unknown 'vgg'; choose from gpt, convo" in capsys.readouterr().err

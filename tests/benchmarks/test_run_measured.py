"""Measured steps: what the benchmark does before it measures."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from benchmarks import run_measured
from tfplace.measure import cluster


@pytest.mark.parametrize(
  ("devices", "left"), [("gpus:2", [([], "GPU")]), ("workers:2", [])]
)
def test_gpus_are_left_to_the_processes_that_measure(
  devices, left, monkeypatch
):
  class OpenedError(Exception):
    """The processes start."""

  def opened(_):
    raise OpenedError

  seen = []
  monkeypatch.setattr(
    tf.config, "set_visible_devices", lambda *given: seen.append(given)
  )
  monkeypatch.setattr(cluster, "open_cluster", opened)
  values = SimpleNamespace(
    devices=devices, models=[], microbatches=["2"], seeds=["0"]
  )
  with pytest.raises(OpenedError):
    run_measured.main(values)
  assert seen == left

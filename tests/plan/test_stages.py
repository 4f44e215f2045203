"""Seconds of the stages of planning."""

import contextlib
import time

import numba
import pytest

from tfplace.plan import Stages


def test_a_stage_inside_another_counts_once():
  stages, began = Stages(), time.monotonic()
  with stages("estimate"):
    time.sleep(0.05)
    with stages.timed("extraction"):
      time.sleep(0.1)
      with stages("search"):
        time.sleep(0.05)
    with stages("search"):
      time.sleep(0.05)
  whole = time.monotonic() - began
  assert sum(stages.seconds.values()) == pytest.approx(whole, abs=0.02)
  assert stages.seconds["extraction"] == pytest.approx(0.1, abs=0.04)
  assert stages.seconds["search"] == pytest.approx(0.1, abs=0.04)


def test_a_stage_that_fails_is_timed_too():
  stages = Stages()
  with pytest.raises(ValueError, match="no"), stages("search"):
    time.sleep(0.05)
    raise ValueError("no")
  with stages.timed("proof"):
    pass
  assert stages.seconds["search"] >= 0.05 > stages.seconds["proof"]


@pytest.mark.parametrize("compiles", [False, True])
def test_compilation_is_told_only_where_kernels_compile(compiles):
  @numba.njit
  def own(value):
    return value + 1

  own(1)
  told = []

  @contextlib.contextmanager
  def show(stage, detail, seconds):
    told.append(f"{stage}{detail}")
    yield lambda *_: None
    told.append("end")

  stages = Stages(show)
  with stages.loading_placers():
    own(1)  # It is compiled for integers already.
    if compiles:
      own(1.0)
      own(1j)
  line = "compiling the placers, once per installation"
  assert told == ([line, "end"] if compiles else [])
  way = "compiling" if compiles else "loading"
  assert stages.seconds.keys() == {f"{way} the placers"}

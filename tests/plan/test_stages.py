"""Seconds of the stages of planning."""

import contextlib

import numba
import pytest

from tfplace.plan.stages import Stages


class Clock:
  """A clock that only its own sleep advances."""

  def __init__(self):
    self._now = 0.0

  def monotonic(self):
    return self._now

  def sleep(self, seconds):
    self._now += seconds


@pytest.fixture
def clock(monkeypatch):
  found = Clock()
  monkeypatch.setattr("tfplace.plan.stages.time", found)
  return found


def test_a_stage_inside_another_counts_once(clock):
  stages = Stages()
  with stages("estimate"):
    clock.sleep(1.0)
    with stages.timed("extraction"):
      clock.sleep(2.0)
      with stages("search"):
        clock.sleep(4.0)
    with stages("search"):
      clock.sleep(8.0)
  assert stages.seconds == {"estimate": 1.0, "extraction": 2.0, "search": 12.0}


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

"""What holds for all tests."""

import contextlib
import itertools
import pathlib
from collections.abc import Callable, Iterator

import pytest

_HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def own_graph_caches(tmp_path_factory):
  """No command of a test finds graphs of another, or of the user."""
  folder, count = tmp_path_factory.getbasetemp(), itertools.count()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      "tfplace.plan.graph_cache.default_directory",
      lambda: str(folder / f"graph_cache_{next(count)}"),
    )
    yield


@pytest.fixture(scope="session")
def quick_links() -> Callable[[], contextlib.AbstractContextManager[None]]:
  """A context for tests in which the figures of links do not count.

  Inside, each load is sent in two steps, once. What links cost is tested with
  all of the transfers, in `measure.test_links` and `measure.test_workers`.
  """
  return _few_transfers


@contextlib.contextmanager
def _few_transfers() -> Iterator[None]:
  from tfplace.measure.calibrate import links  # loads TensorFlow

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(links, "_ROUNDS", 1)
    patch.setattr(links, "_STEPS", 2)
    yield


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
  """As `--dist loadfile`, but all tests of `keras` go to one worker: they run
  in a child, which each worker that has one of them would run anew."""
  from xdist.scheduler import LoadFileScheduling

  if config.getvalue("dist") != "loadfile":
    return None
  whole = (_HERE / "keras").relative_to(config.rootpath).as_posix()

  class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid):
      return (
        whole
        if nodeid.startswith(f"{whole}/")
        else super()._split_scope(nodeid)
      )

  return Scheduling(config, log)

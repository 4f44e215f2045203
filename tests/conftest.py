"""Fixtures and settings of all tests."""

import itertools

import pytest

# Folders in which a file can take minutes.
_LONG = (
  "training",
  "keras",
  "extraction",
  "measure",
  "plan",
  "tests",  # files outside of any folder: examples, the wheel
  "models",
  "learned",
  "benchmarks",
)


def pytest_configure(config):
  """Workers of pytest-xdist get files in the order of the next function."""
  config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
  """Long files first: no worker is left with one when the other has ended."""
  items.sort(key=lambda item: _order(item.path.parent.name))


def _order(folder):
  return _LONG.index(folder) if folder in _LONG else len(_LONG)


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

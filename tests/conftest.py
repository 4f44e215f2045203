"""What holds for all tests."""

import itertools

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_graph_caches(tmp_path_factory):
  """No command of a test finds graphs of another, or of the user."""
  folder, count = tmp_path_factory.getbasetemp(), itertools.count()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      "tfplace.cache.default_directory",
      lambda: str(folder / f"graph_cache_{next(count)}"),
    )
    yield

"""One pair of workers for all the tests."""

from collections.abc import Iterator

import pytest

from tests.testing.small_steps import Step, trained_step
from tfplace.measure.local.devices import WorkerCluster


@pytest.fixture(scope="session")
def trained() -> Step:
  return trained_step()


@pytest.fixture(scope="session")
def workers() -> Iterator[WorkerCluster]:
  with WorkerCluster(2) as cluster:
    yield cluster

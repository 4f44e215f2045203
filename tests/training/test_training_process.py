"""Runs the tests that need Keras 2, in a process that has it."""

import pytest

from tests.testing import child_pytest, train_commands

FOLDER = train_commands.ROOT / "tests" / "training" / "keras2"
MODULES = sorted(path.stem for path in FOLDER.glob("test_*.py"))
_TIMEOUT_S = 1800


@pytest.fixture(scope="module")
def results():
  """Returns failures by "module::test"."""
  environment = train_commands.environment(TF_USE_LEGACY_KERAS="1")
  with child_pytest.PytestChild(
    train_commands.ROOT, environment, _TIMEOUT_S
  ) as child:
    return child.run([str(FOLDER)])


@train_commands.needs_extra_train
@pytest.mark.parametrize("module", MODULES)
def test_in_a_training_process(results, module):
  crash = results[child_pytest.CRASH]
  assert crash is None, crash[-5000:]
  found = {k: v for k, v in results.items() if k.startswith(f"{module}::")}
  assert found, "none of its tests ran"
  failed = "\n".join(f"{k}: {v}" for k, v in found.items() if v is not None)
  assert not failed, failed[-5000:]

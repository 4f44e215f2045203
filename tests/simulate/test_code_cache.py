"""Compiled code is kept where a user can write, and nowhere that others can."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

import tfplace
from tfplace.simulate import code_cache

PACKAGE = pathlib.Path(tfplace.__file__).parent
NOBODY = 65534


def _is_root():
  """True if this process may act as other users: a sandbox's root may not."""
  if not hasattr(os, "getuid") or os.getuid() != 0:
    return False
  mapped = pathlib.Path("/proc/self/uid_map")
  if not mapped.exists():
    return True
  ranges = [line.split() for line in mapped.read_text().splitlines()]
  return any(
    int(first) <= NOBODY < int(first) + int(n) for first, _, n in ranges
  )


IS_ROOT = _is_root()

# Numba's own places are refused to whoever is not root; here, to root as well.
CODE = """
from numba.core import caching
for name, kind in list(vars(caching).items()):
  if name.endswith("CacheLocator") and "UserProvided" not in name:
    kind.from_function = classmethod(lambda *_: None)
from tfplace.simulate import jit
import kernels
print(kernels.twice(4), len(kernels.twice.stats.cache_hits))
"""
# This Python may lie where only root can read: all of it is loaded before.
AS_NOBODY = f"""
import os, sys
import numba
import tfplace.simulate
numba.njit(lambda value: 2 * value)(1)
for name in [name for name in sys.modules if name.startswith("tfplace")]:
  del sys.modules[name]
sys.path.insert(0, os.getcwd())
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
import kernels, tfplace
print(tfplace.__file__)
print(kernels.twice(4), len(kernels.twice.stats.cache_hits))
"""
KERNEL = """
from tfplace.simulate.jit import kernel
@kernel
def twice(value):
  return 2 * value
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
  """Another temporary directory of the system, as open as /tmp is."""
  path = tmp_path / "tmp"
  path.mkdir()
  path.chmod(0o1777)
  monkeypatch.setattr(tempfile, "tempdir", str(path))
  return path


def ran(tmp_path, temporary, code=CODE, **options):
  (tmp_path / "kernels.py").write_text(KERNEL)
  path = os.pathsep.join([str(PACKAGE.parent), str(tmp_path)])
  env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
  env.pop("NUMBA_CACHE_DIR", None)
  env.update(options.pop("env", {}))
  return subprocess.run(
    [sys.executable, "-c", code],
    env=env,
    capture_output=True,
    text=True,
    check=False,
    cwd=tmp_path,
    **options,
  )


def test_a_second_process_compiles_nothing(tmp_path, temporary):
  first, second = ran(tmp_path, temporary), ran(tmp_path, temporary)
  assert (first.returncode, second.returncode) == (0, 0), first.stderr
  assert first.stdout.split() == ["8", "0"]
  assert second.stdout.split() == ["8", "1"]
  for done in (first, second):
    (line,) = done.stderr.splitlines()
    assert "compiled placers are kept in" in line and "NUMBA_CACHE" in line
  (folder,) = temporary.iterdir()
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_any_place_it_still_runs_and_says_so(tmp_path, temporary):
  temporary.chmod(0o777)  # whose names others can change
  done = ran(tmp_path, temporary)
  assert done.stdout.split() == ["8", "0"], done.stderr
  (line,) = done.stderr.splitlines()
  assert "compiled anew in every process" in line


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_another_user_without_a_home_keeps_code(tmp_path, temporary):
  # A copy that he may read and not write, in folders that he may enter.
  home = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
  try:
    home.chmod(0o755)
    copy = shutil.copytree(
      PACKAGE, home / "tfplace", ignore=shutil.ignore_patterns("__pycache__")
    )
    open_tmp = home / "tmp"
    open_tmp.mkdir()
    open_tmp.chmod(0o1777)
    done = [
      ran(home, open_tmp, AS_NOBODY, env={"HOME": "/nonexistent"})
      for _ in range(2)
    ]
    assert str(copy) in done[0].stdout, done[0].stderr
    assert [each.stdout.split()[1:] for each in done] == [
      ["8", "0"],
      ["8", "1"],
    ]
    (folder,) = open_tmp.iterdir()
    assert folder.name == f"tfplace-{NOBODY}"
    assert folder.stat().st_uid == NOBODY
  finally:
    shutil.rmtree(home)


def made_by_another(path):
  path.mkdir()
  os.chown(path, NOBODY, NOBODY)


def a_link(path):
  target = path.parent.parent / "elsewhere"
  target.mkdir()
  path.symlink_to(target)


def open_to_all(path):
  path.mkdir()
  path.chmod(0o777)


def open_to_the_group(path):
  path.mkdir()
  path.chmod(0o770)


def a_file(path):
  path.write_text("")


@pytest.mark.parametrize(
  "trap",
  [made_by_another, a_link, open_to_all, open_to_the_group, a_file],
  ids=lambda trap: trap.__name__,
)
def test_a_directory_that_another_may_have_laid_is_not_used(temporary, trap):
  if trap is made_by_another and not IS_ROOT:
    pytest.skip("only root can make it another's")
  trap(temporary / f"tfplace-{os.getuid()}")
  assert code_cache.private_dir() is None


def test_a_directory_of_ones_own_is_used_again(temporary):
  path = code_cache.private_dir()
  assert path == str(temporary / f"tfplace-{os.getuid()}")
  assert code_cache.private_dir() == path


def test_other_packages_keep_their_code_where_they_did(temporary, monkeypatch):
  from numba.core import config

  code_cache._told_dir.cache_clear()
  before = config.CACHE_DIR
  with code_cache.fallback() as is_kept:
    assert is_kept and code_cache.private_dir() == config.CACHE_DIR
  assert before == config.CACHE_DIR
  code_cache._told_dir.cache_clear()

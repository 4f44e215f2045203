"""Where compiled code is kept when neither the package nor the home directory
can be written: a directory of this user's under the system's temporary one.

Numba itself keeps code beside the source or in the user's cache directory, and
otherwise refuses to keep it at all. What is kept is run, so a directory that
another user could have made, or can write to, is never used.
"""

import contextlib
import functools
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

from numba.core import config as numba_config

_config: Any = numba_config  # its names are set at run time
_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def fallback() -> Iterator[bool]:
  """Has Numba keep what is decorated meanwhile in the directory of last resort;
  other packages' code goes where it did. False where there is none.
  """
  path = _told_dir()
  before = _config.CACHE_DIR
  _config.CACHE_DIR = path or before
  try:
    yield path is not None
  finally:
    _config.CACHE_DIR = before


@functools.cache
def _told_dir() -> str | None:
  """`private_dir`, which is said once."""
  path = private_dir()
  why = "neither the package's folder nor the home directory can be written"
  if path is None:
    _logger.warning(
      "%s: the placers are compiled anew in every process, which takes about a"
      " minute; set NUMBA_CACHE_DIR to a directory of your own",
      why,
    )
  else:
    _logger.warning(
      "%s: compiled placers are kept in %s; set NUMBA_CACHE_DIR to keep them"
      " elsewhere",
      why,
      path,
    )
  return path


def private_dir() -> str | None:
  """A directory that this user owns and no other can write; None where the
  system's temporary directory has none and lets none be made.
  """
  user = os.getuid() if hasattr(os, "getuid") else "user"
  try:
    parent = tempfile.gettempdir()
    path = os.path.join(parent, f"tfplace-{user}")
    with contextlib.suppress(FileExistsError):
      os.mkdir(path, 0o700)
    is_safe = _is_private(path) and _keeps_names(parent)
  except OSError:
    return None
  return path if is_safe and os.access(path, os.W_OK) else None


def _is_private(path: str) -> bool:
  """Whether it is a directory itself, this user's, and closed to others."""
  about = os.lstat(path)
  if not stat.S_ISDIR(about.st_mode):
    return False
  if not hasattr(os, "getuid"):  # such systems have a directory per user
    return True
  return about.st_uid == os.getuid() and not about.st_mode & 0o022


def _keeps_names(parent: str) -> bool:
  """Whether no other user can put another directory in the place of one."""
  mode = os.stat(parent).st_mode
  return not mode & 0o022 or bool(mode & stat.S_ISVTX)

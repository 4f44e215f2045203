"""Fallback cache directory for compiled code.

Numba caches code next to the source or in the user's cache directory. If
neither is writable, this module offers a private directory below the system's
temporary directory. Cached code is executed, so a directory that another user
owns or can write to is never used.
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

_config: Any = numba_config  # Its attributes are set at run time.
_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def fallback() -> Iterator[bool]:
  """Directs Numba's cache to the fallback directory inside the context.

  Yields False if there is no safe directory. Only functions decorated inside
  are affected, not other packages.
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
  """Returns a temporary directory that only this user can write, or None."""
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
  """Returns True for a real directory that only this user can write."""
  about = os.lstat(path)
  if not stat.S_ISDIR(about.st_mode):
    return False
  # Such systems have a temporary directory per user.
  if not hasattr(os, "getuid"):
    return True
  return about.st_uid == os.getuid() and not about.st_mode & 0o022


def _keeps_names(parent: str) -> bool:
  """Returns True if no other user can replace a directory in `parent`."""
  mode = os.stat(parent).st_mode
  return not mode & 0o022 or bool(mode & stat.S_ISVTX)

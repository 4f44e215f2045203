"""Extracted graphs kept on disk, found by what decides their content.

`keys` says what that is, `store` keeps the files. Nothing here imports
TensorFlow: a graph that is there is read in a fraction of a second.
"""

from tfplace.cache.keys import content_key
from tfplace.cache.store import GraphCache, default_directory

__all__ = ["GraphCache", "content_key", "default_directory"]

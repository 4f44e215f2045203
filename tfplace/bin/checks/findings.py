"""Findings of checks: problems, each with a way out."""

import contextlib
import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Finding:
  """A problem of this installation.

  Attributes:
    problem: what is wrong, with the value that was found.
    way_out: what to do about it.
    is_broken: whether tfplace needs what is broken. Otherwise the finding is a
      note, such as a missing GPU.
  """

  problem: str
  way_out: str
  is_broken: bool = True

  def __str__(self) -> str:
    """Returns "problem: way out"."""
    return f"{self.problem}: {self.way_out}"


@contextlib.contextmanager
def noted(what: str, findings: list[Finding]) -> Iterator[None]:
  """Turns an error of a check itself into a finding."""
  try:
    yield
  except Exception as error:
    text = " ".join(str(error).split())
    findings.append(
      Finding(
        f"the check of {what} failed with {type(error).__name__}: {text[:300]}",
        "tfplace-doctor itself does not expect this; please report it",
      )
    )

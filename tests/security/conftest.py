"""Fixtures that show whether an attack had an effect."""

import pytest


class Canary:
  """A folder in which an attack would leave a trace."""

  def __init__(self, folder):
    self.folder = folder / "canary"
    (self.folder / "old").mkdir(parents=True)
    self.file = self.folder / "file"
    self.old = self.folder / "old"
    self.restore()

  def restore(self):
    for path in self.folder.iterdir():
      if path not in (self.old, self.file):
        path.unlink()
    self.old.mkdir(exist_ok=True)
    self.file.write_text("canary\n")
    (self.old / "part").write_text("canary\n")

  def sings(self):
    files = {
      str(path.relative_to(self.folder)): path.read_text(errors="replace")
      for path in self.folder.rglob("*")
      if path.is_file()
    }
    return files == {"file": "canary\n", "old/part": "canary\n"}


@pytest.fixture
def canary(tmp_path):
  return Canary(tmp_path)

"""The camera takes what is there, and no more."""

import pytest
from PIL import Image

from benchmarks.lib import screenshots

PAGE = (
  "<html><head></head><body style='margin:0'><main><section id='a'"
  " style='height:50px;background:#d55e00'></section><section id='b'"
  " style='height:90px;background:#0072b2'></section></main></body></html>"
)


def test_one_section_is_photographed_without_the_empty_rest(tmp_path):
  if not any(map(screenshots.shutil.which, screenshots.BROWSERS)):
    pytest.skip(
      f"no browser: none of {', '.join(screenshots.BROWSERS)} is there"
    )
  (tmp_path / "page.html").write_text(screenshots.only(PAGE, "b"))
  screenshots.photograph(tmp_path / "page.html", tmp_path / "b.png", 600)
  picture = Image.open(tmp_path / "b.png").convert("RGB")
  assert picture.size == (screenshots.WIDTH, 90 + 16)
  assert picture.getpixel((9, 9)) == (0, 0x72, 0xB2)
  assert (tmp_path / "b.png").stat().st_size < 2000


def test_without_a_browser_the_reason_is_said(tmp_path, monkeypatch):
  monkeypatch.setattr(screenshots.shutil, "which", lambda name: None)
  with pytest.raises(SystemExit, match="no browser: none of chromium"):
    screenshots.photograph(tmp_path / "page.html", tmp_path / "b.png", 600)

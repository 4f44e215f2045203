"""Photographs of HTML pages by Chromium, as small PNG files."""

import io
import pathlib
import shutil
import subprocess
import tempfile

from PIL import Image, ImageChops

from tfplace.formats.files import write_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 1240  # pixels
_COLORS = 256  # of a picture: a fraction of the bytes, and no difference


def photograph(html: pathlib.Path, png: pathlib.Path, height: int) -> None:
  """Opens a page in Chromium and saves what it shows, without empty edges."""
  browser = next(filter(None, map(shutil.which, BROWSERS)), None)
  if browser is None:
    raise SystemExit(f"no browser: none of {', '.join(BROWSERS)} is installed")
  with tempfile.TemporaryDirectory() as folder:
    raw = pathlib.Path(folder) / "raw.png"
    command = [
      browser,
      *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
      "--host-resolver-rules=MAP * ~NOTFOUND",
      "--virtual-time-budget=30000",
      f"--user-data-dir={folder}/profile",
      f"--window-size={WIDTH},{height}",
      f"--screenshot={raw}",
      html.resolve().as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    picture = Image.open(raw).convert("RGB")
  empty = Image.new("RGB", picture.size, picture.getpixel((2, height - 2)))
  box = ImageChops.difference(picture, empty).getbbox() or (0, 0, 1, 1)
  picture = picture.crop((0, 0, WIDTH, min(height, box[3] + 16)))
  buffer = io.BytesIO()
  picture.quantize(_COLORS, dither=Image.Dither.NONE).save(
    buffer, "png", optimize=True
  )
  write_bytes(png, buffer.getvalue())
  print(f"{png}: {len(buffer.getvalue()) / 1e3:.0f} kB")


def only(html: str, section: str) -> str:
  """The report with one of its sections alone."""
  style = (
    "<style>main > * {display: none !important} main {padding: 0 !important;"
    f" max-width: none !important}} #{section} {{display: block !important;"
    " margin: 0; border: 0} body {background: #fff}</style>"
  )
  return html.replace("</head>", f"{style}</head>")

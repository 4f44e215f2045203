"""Colours that people with any kind of colour vision tell apart.

M. Okabe and K. Ito, "Color Universal Design" (2008): their eight. The
yellow is darkened, since it is drawn on white, and black is for what matters.
"""

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#C9B800", "#1A1A1A"
GREY, PALE = "#8A8F98", "#C4C8CE"

TRANSFER = ORANGE
CRITICAL = BLACK
OTHER = PALE
OP_TYPES = (BLUE, SKY, GREEN, PINK, YELLOW)
_DEVICES = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILLION, YELLOW, GREY)
_DASHES = ("solid", "dashed", "dotted", "dotdash")


def device_color(index: int) -> str:
  """The colour of a device, the same in every picture of a page."""
  return _DEVICES[index % len(_DEVICES)]


def device_dash(index: int) -> str:
  """A line pattern that tells apart devices of one colour, and neighbours."""
  return _DASHES[(index // len(_DEVICES) + index // 4) % len(_DASHES)]

"""Plans in notebooks, and their timelines as figures."""

import pytest

import tfplace
from tests.testing import placed_models as at
from tests.testing.html_pages import bars_of, page_of
from tfplace.errors import ApplyError, FormatError

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))
CLUSTER = at.linked(memory_bytes=2.0**30)


def plan_of(kind="two_inputs"):
  return tfplace.plan_model(
    at.build(kind), CLUSTER, strategy="m_etf", batch_size=at.BATCH, budget_s=1
  )


def test_a_plan_shows_headline_devices_timeline_and_notes():
  plan = plan_of()
  text = plan._repr_html_()
  page = page_of(text)
  assert page.words[0].lower() == plan.message.lower()
  names = [row.name for row in plan.device_rows]
  assert [row[0] for row in page.rows[1:]] == names and len(names) > 1
  assert set(plan.notes) <= set(page.words)
  bars, svg = bars_of(text)
  assert len(bars) > 10
  assert all(name in "".join(svg.itertext()) for name in names)


def test_a_plan_of_layers_shows_their_devices():
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  page = page_of(model.placement._repr_html_())
  devices = {layer: at.LOCAL + name for layer, name in at.SPLIT.items()}
  assert dict(page.rows[1:]) == devices
  assert "svg" not in page.tags


def test_a_plan_is_plotted_and_saved(tmp_path):
  plan = plan_of()
  path = tmp_path / "step.png"
  figure = plan.plot(path)
  assert path.stat().st_size and figure._repr_png_()
  tracks, memory = figure.axes
  names = [label.get_text() for label in tracks.get_yticklabels()]
  for row in plan.device_rows:
    assert any(name.startswith(row.name) for name in names)
  assert len(memory.lines) >= len(CPUS)
  assert plan.plot().axes


def test_what_cannot_be_plotted_is_named(tmp_path):
  with pytest.raises(FormatError, match=r"a timeline is one of \.png"):
    plan_of().plot(tmp_path / "step.gif")
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  with pytest.raises(ApplyError, match="'net' was not planned with costs"):
    model.placement.plot()

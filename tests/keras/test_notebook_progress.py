"""Progress of planning in a notebook: one line that changes."""

import sys
import types

import pytest

import tfplace
from tests.testing import placed_models as at
from tfplace.keras import progress

PAIR = at.linked(2, 1e5)


@pytest.fixture
def notebook(monkeypatch):
  """Stands for IPython in a kernel: a list of lists of texts, by display."""
  shown = []

  def display(data, *, raw, display_id):
    assert raw and display_id is True
    assert set(data) == {"text/plain", "text/html"}
    own = [data["text/plain"]]
    shown.append(own)

    def update(data, *, raw):
      assert raw
      assert "<" not in data["text/html"].removeprefix("<pre>")[:-6]
      own.append(data["text/plain"])

    return types.SimpleNamespace(update=update)

  module = types.SimpleNamespace(display=display)
  shell = types.SimpleNamespace(kernel=object())
  ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=module)
  monkeypatch.setitem(sys.modules, "IPython", ipython)
  monkeypatch.setitem(sys.modules, "IPython.display", module)
  monkeypatch.setitem(sys.modules, "ipykernel", types.SimpleNamespace())
  return shown


def plan(**options):
  return tfplace.plan_model(
    at.build("dense"), PAIR, strategy="m_etf", budget_s=1, **options
  )


def test_a_notebook_shows_one_line_that_changes(notebook, capsys):
  told = plan(verbose=1)
  (line,) = notebook
  assert line[0] == "planning model 'net': tracing its train step ..."
  assert any("search by m_etf" in text for text in line)
  assert "lanned in " in line[-1]
  printed = capsys.readouterr().out.splitlines()
  assert len(printed) == 1 and told.message in printed[0]


def test_each_plan_has_its_own_line(notebook):
  plan(verbose=1)
  plan(verbose=1)
  assert len(notebook) == 2


def test_a_silent_plan_shows_nothing_in_a_notebook(notebook, capsys):
  plan(verbose=0)
  assert not notebook and capsys.readouterr().out == ""


def test_a_terminal_with_ipython_prints_lines(notebook, monkeypatch, capsys):
  monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
  plan(verbose=1)
  assert not notebook
  assert len(capsys.readouterr().out.splitlines()) > 3


def test_names_are_escaped_in_the_line(notebook):
  display = progress.StageDisplay("<b>", 1)
  with display("tracing", " <i>", None):
    pass
  display.finish("<u>")
  assert notebook == [["planning model '<b>': tracing <i> ...", "<u>"]]

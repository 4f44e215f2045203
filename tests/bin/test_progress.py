"""The bar on a terminal: that it is drawn, and what it says."""

import io

import pytest
from rich import console

from tfplace.bin import cli


@pytest.fixture
def screen(monkeypatch):
  monkeypatch.setattr(cli, "PROGRESS_AFTER_S", -1.0)
  return console.Console(file=io.StringIO(), force_terminal=True, width=100)


def drawn(screen):
  return screen.file.getvalue()


def test_the_bar_names_the_stage_and_counts(screen):
  with cli.ClockBar(screen, "Placing [bold]x[/bold] [/]") as bar:
    bar.refresh()
    bar.show_stage("tracing", lambda: 12345)
    bar.refresh()
    bar.show_stage("shapes of 7 ops")
    bar.refresh()
  for text in (" ", ": tracing, 12,345 ops", ": shapes of 7 ops "):
    assert f"Placing [bold]x[/bold] [/]{text}" in drawn(screen)


def test_nothing_is_drawn_in_the_first_seconds(screen, monkeypatch):
  monkeypatch.setattr(cli, "PROGRESS_AFTER_S", 60.0)
  with cli.ClockBar(screen, "Placing") as bar:
    bar.refresh()
  assert "Placing" not in drawn(screen)


def test_without_a_terminal_stages_are_ignored(capsys):
  with cli.showing_progress("Placing") as on_stage:
    on_stage("anything", lambda: 1 // 0)
  assert capsys.readouterr().err == ""

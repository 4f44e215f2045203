"""Progress of commands on a terminal and elsewhere."""

import io

from rich import console

from tfplace.bin import cli


def test_a_terminal_shows_work_and_stage(monkeypatch):
  screen = console.Console(file=io.StringIO(), force_terminal=True, width=100)
  monkeypatch.setattr(cli.console, "Console", lambda **_: screen)
  with cli.showing_progress("Placing [bold]x[/bold] [/]") as on_stage:
    on_stage("shapes of 7 ops")
  assert "Placing [bold]x[/bold] [/]: shapes of 7 ops" in screen.file.getvalue()


def test_without_a_terminal_stages_are_ignored(capsys):
  with cli.showing_progress("Placing") as on_stage:
    on_stage("anything")
  assert capsys.readouterr().err == ""

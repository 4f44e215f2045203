"""Reads what commands print."""

import json


def last_json(capsys):
  return json.loads(capsys.readouterr().out.splitlines()[-1])

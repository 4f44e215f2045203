"""--order of tfplace-place, and what reads the file that it writes."""

import json

import pytest

from tests.testing.command_output import last_json
from tests.testing.split_steps import two_stages
from tfplace import formats
from tfplace.bin import explain, place, simulate


@pytest.fixture
def stages(tmp_path):
  """Flags of a pipeline of two devices: 13 us by arrival, 11 by rank."""
  problem = two_stages()
  formats.save_graph(problem.graph, tmp_path / "g.json")
  formats.save_cluster(problem.cluster, tmp_path / "c.json")
  return [f"--graph={tmp_path}/g.json", f"--cluster={tmp_path}/c.json"]


def test_auto_says_the_order_and_why(stages, tmp_path, capsys):
  plan = tmp_path / "p.json"
  flags = [*stages, "--strategy=m_topo", "--json"]  # auto is the default
  assert place.run([*flags, f"--output={plan}"]) == 0
  out = capsys.readouterr().out
  said = "Devices run their ops by rank, since as they become ready nothing"
  assert f"{said} faster than 13 us was found." in " ".join(out.split())
  placed = json.loads(out.splitlines()[-1])
  assert (placed["step_time_us"], placed["order"]) == (11, "rank")
  assert json.loads(plan.read_text())["order"] == "rank"
  assert simulate.run([*stages, f"--placement={plan}"]) == 0
  simulated = last_json(capsys)
  assert (simulated["step_time_us"], simulated["order"]) == (11, "rank")
  assert explain.run([*stages, f"--placement={plan}", "--json"]) == 0
  assert last_json(capsys)["step_time_us"] == 11

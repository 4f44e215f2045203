"""The HTML report: refusals, contents and hostile names."""

import importlib.util
import re

from tfplace import formats
from tfplace.bin import place, simulate
from tfplace.graph import Cluster, Device, Link, OpSpec, build_graph

HOSTILE = "</script><img src=http://example.org/x.png>"


def test_a_command_without_the_extra_fails_before_its_work(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  flags = ["--graph=none.json", "--cluster=k80x1", "--placement=none.json"]
  assert simulate.run([*flags, f"--report={tmp_path}/r.html"]) == 1
  assert "pip install 'tfplace[report]'" in capsys.readouterr().err


def test_tfplace_place_writes_the_placers_it_ran(tmp_path):
  ops = [OpSpec(x, "X", {"GPU": 1.0}, [8.0]) for x in "ab"]
  devices = (Device("g0", "GPU"), Device("g1", "GPU"))
  cluster = Cluster("two", devices, (Link("g0", "g1", 2.0),))
  formats.save_graph(build_graph(HOSTILE, ops, []), tmp_path / "g.json")
  formats.save_cluster(cluster, tmp_path / "c.json")
  flags = ["--strategy=blocks", f"--report={tmp_path}/r.html"]
  files = [f"--graph={tmp_path}/g.json", f"--cluster={tmp_path}/c.json"]
  assert place.run([*files, *flags]) == 0
  text = (tmp_path / "r.html").read_text(encoding="utf-8")
  assert re.search(r"<tr class=\"best\"><td[^>]*>blocks<", text)
  assert "on two takes" in text and "Critical path by kind" in text
  # It asks nobody, and a hostile name is text.
  assert "default-src 'none'" in text
  sources = re.findall(r"(?:src|href)=\"([^\"]*)", text)
  assert [s[:22] for s in sources] == ["data:image/png;base64,"]
  assert HOSTILE not in text and "&lt;img src=" in text

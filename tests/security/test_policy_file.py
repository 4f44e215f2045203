"""A `policy.json` of any content is one sentence, and no folder is lost."""

import json
import os
import shutil
import threading

import pytest

import tfplace
from tests.testing.policy_problems import gpus, random_graph
from tfplace.errors import TrainingError
from tfplace.learned import policies, policy_format
from tfplace.learned.policy_format import INFO_FILE, check_export_dir

VALID = json.loads((policies.SHIPPED / "gdp" / INFO_FILE).read_text())


def network(**values):
  return json.dumps({**VALID, "network": {**VALID["network"], **values}})


def info(**values):
  return json.dumps({**VALID, **values})


HOSTILE = {
  "empty": "",
  "a number": "5",
  "an array": "[]",
  "deep": "[" * 100_000,
  "deep under a key": '{"format": ' + "[" * 100_000,
  "no text": b"\xff\xfe",
  "a key twice": '{"format": "tfplace.policy.v1", "format": "x"}',
  "a long number": '{"format": ' + "9" * 5000 + "}",
  "format of an object": info(format={}),
  "strategy of a list": info(strategy=["gdp"]),
  "features of text": info(features="1"),
  "no network": json.dumps({k: VALID[k] for k in VALID if k != "network"}),
  "network of a list": info(network=[]),
  "network of a number": info(network=3),
  "axes of text": network(axes="x"),
  "negative axes": network(axes=-1),
  "broken axes": network(axes=1.5),
  "axes of nothing": network(axes=None),
  "a billion axes": network(axes=10**9),
  "axes without end": network(axes=10**400),
  "decisions of text": info(decisions="12"),
  "decisions of a number": info(decisions=12),
  "negative decisions": info(decisions=[-1]),
  "decisions of lists": info(decisions=[[]]),
  "decisions of true": info(decisions=[True]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_policy_info_is_one_sentence(tmp_path, case):
  content = HOSTILE[case]
  content = content if isinstance(content, bytes) else content.encode()
  (tmp_path / INFO_FILE).write_bytes(content)
  with pytest.raises(TrainingError) as caught:
    policy_format.read_info(tmp_path, "gdp")
  said = str(caught.value)
  assert str(tmp_path) in said and "\n" not in said and len(said) < 1000


def test_policy_info_from_devices_and_links_is_refused(tmp_path):
  path = tmp_path / INFO_FILE
  for target in ("/dev/zero", path, "/dev/null"):
    os.symlink(target, path)
    with pytest.raises(TrainingError, match=INFO_FILE):
      policy_format.read_info(tmp_path, "gdp")
    path.unlink()
  path.mkdir()
  with pytest.raises(TrainingError, match=INFO_FILE):
    policy_format.read_info(tmp_path, "gdp")


def test_policy_info_from_an_endless_pipe_is_refused(tmp_path):
  path = tmp_path / INFO_FILE
  os.mkfifo(path)

  def feed():
    with open(path, "wb") as pipe:
      try:
        while True:
          pipe.write(b"[" * (1 << 16))
      except BrokenPipeError:
        pass

  thread = threading.Thread(target=feed, daemon=True)
  thread.start()
  with pytest.raises(TrainingError, match="larger than"):
    policy_format.read_info(tmp_path, "gdp")
  thread.join(10)
  assert not thread.is_alive()


@pytest.mark.parametrize("strategy", ["gdp", "ordered"])
def test_every_shipped_policy_may_be_replaced(tmp_path, strategy):
  shutil.copytree(policies.SHIPPED / strategy, tmp_path / "policy")
  (tmp_path / "policy" / "placements").mkdir()
  (tmp_path / "policy" / "placements" / "nmt.v100x2.json").write_text("{}")
  check_export_dir(tmp_path / "policy")


def test_only_whole_exported_policies_are_replaced(tmp_path):
  folder = tmp_path / "thesis"
  folder.mkdir()
  (folder / "chapter.tex").write_text("years of work")
  for content in ('{"rules": []}', "[]", "", '{"format": "x"}'):
    (folder / INFO_FILE).write_text(content)
    with pytest.raises(TrainingError, match="holds no exported policy"):
      check_export_dir(folder)
  (folder / INFO_FILE).write_text(json.dumps(VALID))
  with pytest.raises(TrainingError, match=r"holds 'chapter\.tex'"):
    check_export_dir(folder)
  (folder / "chapter.tex").unlink()
  for name in ("variables/notes", "placements/sub/a.json", "assets/a"):
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(TrainingError, match="no part of an exported policy"):
      check_export_dir(folder)
    shutil.rmtree(folder / name.split("/", maxsplit=1)[0])
  check_export_dir(folder)


@pytest.mark.parametrize("axes", [0, 64])
def test_info_of_another_network_is_named(tmp_path, axes):
  policy = tmp_path / "policy"
  shutil.copytree(policies.SHIPPED / "gdp", policy)
  (policy / INFO_FILE).write_text(network(axes=axes))
  problem = tfplace.Problem(random_graph(12, seed=1), gpus(2))
  with pytest.raises(TrainingError, match="sizes of its policy"):
    tfplace.place(problem, "gdp", budget_s=5.0, policy=str(policy))

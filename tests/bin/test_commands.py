"""The commands end to end, on real files, and what they say to bad input."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.testing.clusters import linked
from tests.testing.command_output import last_json
from tfplace import formats
from tfplace.bin import explain, extract, measure, place, simulate
from tfplace.bounds import lower_bound
from tfplace.graph import (
  Cluster,
  Device,
  OpSpec,
  Placement,
  Problem,
  build_graph,
)
from tfplace.learned.policies import SHIPPED

COMMANDS = (
  *("extract", "place", "simulate", "measure", "train", "explain", "estimate"),
)


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory):
  import keras

  model = keras.Sequential([keras.Input((1024,))])
  for _ in range(3):
    model.add(keras.layers.Dense(1024, activation="relu"))
  model.compile(optimizer="sgd", loss="mse", jit_compile=False)
  path = tmp_path_factory.mktemp("keras") / "sequential.keras"
  model.save(path)
  return str(path)


@pytest.fixture
def graph_file(tmp_path):
  # b and c may run side by side: a (1) -> b (10), c (10) -> d (1).
  ops = [
    OpSpec(name, "X", {"GPU": us, "CPU": 9 * us}, [100])
    for name, us in (("a", 1.0), ("b", 10.0), ("c", 10.0), ("d", 1.0))
  ]
  graph = build_graph(
    "diamond", ops, [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, 0, 3)]
  )
  path = tmp_path / "diamond.json"
  formats.save_graph(graph, path)
  return str(path)


@pytest.fixture
def cluster_file(tmp_path):
  path = tmp_path / "pair.json"
  devices = [Device(name, "GPU", 1e4) for name in ("g0", "g1")]
  formats.save_cluster(linked(devices, 100.0), path)
  return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_the_command_does_and_exits_0(command, capsys):
  module = importlib.import_module(f"tfplace.bin.{command}")
  assert module.run(["--help"]) == 0
  out = capsys.readouterr().out
  assert f"usage: tfplace-{command}" in out
  assert "--cluster" in out


def test_extract_place_simulate_agree(keras_file, tmp_path, capsys):
  graph, plan = str(tmp_path / "g.json.gz"), str(tmp_path / "p.json")
  source = [f"--keras_model={keras_file}", "--batch_size=4"]
  assert extract.run([*source, "--cluster=p100x2", f"--output={graph}"]) == 0
  assert formats.load_graph(graph).num_ops > 50
  flags = [f"--graph={graph}", "--cluster=p100x2"]
  arguments = [*flags, "--strategy=m_topo", f"--output={plan}", "--json"]
  assert place.run(arguments) == 0
  placed = last_json(capsys)
  assert placed["strategy"] == "m_topo"
  assert placed["evaluations"] >= 1
  assert placed["seconds"] > 0
  low_us, high_us = placed["interval_us"]
  assert low_us < placed["step_time_us"] < high_us
  out = str(tmp_path / "e.json")
  trace, picture = str(tmp_path / "t.json"), str(tmp_path / "t.png")
  assert (
    simulate.run(
      [
        *flags,
        f"--placement={plan}",
        f"--output={out}",
        f"--trace={trace}",
        f"--timeline={picture}",
      ]
    )
    == 0
  )
  assert formats.load_evaluation(out).step_time_us == placed["step_time_us"]
  with open(trace) as file:
    assert json.load(file)["traceEvents"]
  with open(picture, "rb") as file:
    assert file.read()
  # The model itself names the graph as well, without a file of it.
  given = [
    *source,
    "--cluster=p100x2",
    f"--placement={plan}",
    f"--output={out}",
  ]
  assert simulate.run(given) == 0
  assert formats.load_evaluation(out).step_time_us == placed["step_time_us"]


def test_bounds_are_simple_or_proven(
  graph_file, cluster_file, tmp_path, capsys
):
  problem = Problem(
    formats.load_graph(graph_file), formats.load_cluster(cluster_file)
  )
  proven_us = lower_bound(problem).us
  arguments = [f"--graph={graph_file}", f"--cluster={cluster_file}"]
  assert place.run([*arguments, "--strategy=single", "--json"]) == 0
  assert last_json(capsys)["lower_bound_us"] == proven_us
  plan = tmp_path / "p.json"
  formats.save_placement(Placement(problem, [0, 0, 1, 1]), plan)
  arguments += [f"--placement={plan}"]
  assert simulate.run(arguments) == 0
  # a, b or c, d: 1 + 10 + 1; the proven one knows of transfers.
  assert last_json(capsys)["lower_bound_us"] == 12
  assert simulate.run([*arguments, "--prove"]) == 0
  assert last_json(capsys)["lower_bound_us"] == proven_us > 12


def test_a_plan_says_why_a_given_policy_was_not_asked(
  graph_file, cluster_file, capsys
):
  source = [f"--graph={graph_file}", f"--cluster={cluster_file}"]
  assert place.run([*source, f"--policy={SHIPPED / 'ordered'}"]) == 0
  note = "The policy was not asked: a placement is known that is proven"
  assert note in capsys.readouterr().out.replace("\n", " ")
  assert place.run(source) == 0
  assert "was not asked" not in capsys.readouterr().out


def test_inference_is_called_so_and_evaluations_bound_it(
  keras_file, tmp_path, capsys
):
  path = tmp_path / "g.json"
  source = [f"--keras_model={keras_file}", "--batch_size=8", "--notraining"]
  assert extract.run([*source, "--cluster=p100x2", f"--output={path}"]) == 0
  flags = [f"--graph={path}", "--cluster=p100x2", "--json", "--gap=0"]
  limits = ["--strategy=brkga", "--max_evaluations=40", "--budget_s=1e-3"]
  assert place.run([*flags, *limits]) == 0
  out = capsys.readouterr().out
  assert "per inference step" in out
  # As many on both GPUs and on one of them.
  assert json.loads(out.splitlines()[-1])["evaluations"] == 2 * 40


def test_the_split_is_chosen_written_and_known_by_every_command(
  keras_file, tmp_path, capsys
):
  plan, nodes = str(tmp_path / "p.json"), str(tmp_path / "g.pb")
  source = [f"--keras_model={keras_file}", "--cluster=v100x2", "--json"]
  source.append("--batch_size=4096")
  written = [f"--output={plan}", f"--output_graph_def={nodes}"]
  chooses = ["--microbatches=auto", "--budget_s=3"]
  assert place.run([*source, *chooses, *written]) == 0
  out = capsys.readouterr().out
  assert "1 (whole)" in out and "The step is split into" in out
  placed = json.loads(out.splitlines()[-1])
  assert placed["microbatches"] > 1 and placed["max_in_flight"] is None
  tried = {
    row["microbatches"]: row["step_time_us"] for row in placed["variants"]
  }
  assert tried[placed["microbatches"]] == placed["step_time_us"] < tried[1]
  parts = f"microbatch_{placed['microbatches'] - 1}/"
  assert any(op.startswith(parts) for op in formats.load_assignments(plan))
  assert os.path.getsize(nodes) > 0
  source.append(f"--placement={plan}")
  assert simulate.run([flag for flag in source if flag != "--json"]) == 0
  assert last_json(capsys)["step_time_us"] == placed["step_time_us"]
  assert explain.run(source) == 0
  assert last_json(capsys)
  for flag, words in (
    ("--microbatches=auto", "leave it out where a placement is given"),
    ("--microbatches=32,4064", f"is of {placed['microbatches']} microbatches"),
  ):
    assert simulate.run([*source[:2], *source[3:], flag]) == 1
    assert words in capsys.readouterr().err


def test_auto_of_what_cannot_be_split_says_why(
  graph_file, cluster_file, capsys
):
  arguments = [f"--graph={graph_file}", f"--cluster={cluster_file}"]
  arguments += ["--microbatches=auto", "--budget_s=2"]
  assert place.run(arguments) == 0
  assert "(graph) is a graph that was traced already" in capsys.readouterr().out
  assert place.run([*arguments, "--init_placement=p.json"]) == 1
  assert (
    "--init_placement is of a step that is known" in capsys.readouterr().err
  )


def test_measured_placement_on_a_real_worker(keras_file, tmp_path, capsys):
  plan, out = str(tmp_path / "p.json"), str(tmp_path / "e.json")
  source = [f"--keras_model={keras_file}", "--cluster=workers:1"]
  arguments = ["--strategy=single", f"--output={plan}", "--measure", "--json"]
  assert place.run([*source, *arguments]) == 0
  result = last_json(capsys)
  assert result["source"] == "measured"
  assert result["step_time_us"] > 0
  assert result["predicted_step_time_us"] > 0
  arguments = [f"--placement={plan}", f"--output={out}", "--steps=3"]
  assert measure.run([*source, *arguments]) == 0
  evaluation = formats.load_evaluation(out)
  assert evaluation.source == "measured"
  step, beside = capsys.readouterr().out.splitlines()
  time_ms = f"{evaluation.step_time_us / 1e3:.3f} ms"
  count = len(evaluation.extra["step_times_us"])
  assert step.startswith(
    f"measured step time: {time_ms}, the median of {count}"
  )
  assert beside.startswith(f"{evaluation.ratio_to_bound:.2f} times the lower")


# A command with bad flags, and what its error says.
BAD_FLAGS = [
  ("place --graph=G --cluster=C --strategy=magic", "annealing"),
  ("place --graph=G --cluster=k81x2", "k81x2"),
  ("place --model=resnet9 --cluster=k80x2", "inception_v3"),
  ("place --model=nmt --model_sizes=depth=3 --cluster=k80x2", "depth"),
  ("place --cluster=k80x2", "exactly one of"),
  ("place --graph=G --model=nmt --cluster=k80x2", "--model and --graph"),
  ("place --graph=G", "--cluster is missing"),
  ("place --graph=G --cluster=C --output=/no/p.json", "/no"),
  ("place --model=nmt --cluster=k80x2 --measure", "needs real devices"),
  ("place --graph=G --cluster=C --output_graph_def=x.pb", "needs a TensorFlow"),
  ("place --graph=G --budget_s=soon", "soon"),
  (
    "place --graph=G --cluster=C --traffic_tolerance=inf",
    "--traffic_tolerance=inf is a share of the step time: 0.05 gives up 5%",
  ),
  (
    "place --graph=G --cluster=C --strategy=expert --traffic_tolerance=0.1",
    "strategy 'expert' gives up no time",
  ),
  (
    "place --graph=G --cluster=C --measure_s=3",
    "--measure_s=3 limits steps on real devices",
  ),
  ("extract stray", "unexpected argument 'stray'"),
  ("extract --modle=nmt", "modle"),
  ("extract --graph=G --compile=xla", "--compile=xla applies to models"),
  ("simulate --graph=G --cluster=C", "--placement"),
  ("simulate --graph=G --cluster=C --placement=none.json", "No such file"),
  ("measure --graph=G --cluster=workers:2", "--graph has only costs"),
  (
    "place --graph=G --cluster=k80x2 --max_memory=GPU:0=1GiB,GPU:0=2GiB",
    "--max_memory gives 'GPU:0' two sizes, '1GiB' and '2GiB'",
  ),
  ("place --graph=G --cluster=C --max_in_flight=2", "was traced already"),
  ("place --model=nmt --cluster=workers:x", "workers:x"),
  ("estimate", "give exactly one of --model"),
  ("estimate --model=nmt --batch_size=0", "batch_size"),
  ("estimate --model=nmt --cluster=workers:2", "names running devices"),
  ("estimate --model=nmt --precision=half", "unknown precision 'half'"),
  ("estimate --model=nmt --largest_batch", "give --cluster"),
  ("estimate --model=nmt --recompute=auto", "only tfplace-place chooses it"),
  ("estimate --graph=G", "none is given: name it (--cluster)"),
  ("estimate --graph=G --cluster=v100x1+p100x1", "no times for GPU-v100"),
  ("estimate --graph=G --cluster=C --largest_batch", "needs a model to trace"),
  ("estimate --graph=G --cluster=C --precision=float32", "leave it out"),
  (
    "place --model=nmt --cluster=k80x2 --costs=measured",
    "--costs=measured needs running devices",
  ),
  ("estimate --model=nmt --report=r.txt", "ends in .html"),
  ("place --graph=G --cluster=C --timeline=x.gif", "x.gif"),
  (
    "place --model=rnnlm_2 --cluster=v100x2 --input_shapes=16x9",
    "is for --keras_model; --model says",
  ),
  # Microbatches of a batch of eight examples.
  ("extract --keras_model=K --microbatches=0", "whole number of at least"),
  ("extract --keras_model=K --microbatches=auto", "only tfplace-place"),
  (
    "extract --keras_model=K --microbatches=8,0",
    "the size '0' must be a whole number of at least 1",
  ),
  (
    "extract --keras_model=K --microbatches=2 --max_in_flight=0",
    "--max_in_flight='0'",
  ),
  (
    "extract --keras_model=K --max_in_flight=2",
    "--max_in_flight=2 has no effect without --microbatches; give both",
  ),
  (
    "extract --keras_model=K --microbatches=9 --batch_size=8",
    "microbatches is 9, and the batch has 8 examples",
  ),
  (
    "extract --keras_model=K --microbatches=2 --notraining",
    "is an inference step: leave microbatches out",
  ),
  ("extract --graph=G --microbatches=2", "(graph) is a graph that was"),
  ("extract --graph=G --batch_size=2", "--batch_size=2 applies to models"),
  (
    "place --graph=G --cluster=C --policy=nowhere",
    "'nowhere' holds no policy: it has no policy.json",
  ),
  (
    "extract --saved_model=somewhere --microbatches=2",
    "'somewhere' (saved_model) is a graph that was traced already",
  ),
]


@pytest.mark.parametrize(
  "line, words", BAD_FLAGS, ids=[line[:60] for line, _ in BAD_FLAGS]
)
def test_bad_flags_get_one_line_and_exit_1(
  line, words, keras_file, graph_file, cluster_file, capsys, tmp_path
):
  names = {"G": graph_file, "C": cluster_file, "K": keras_file}
  command, *arguments = line.split()
  filled = [
    "=".join(names.get(part, part) for part in argument.split("="))
    for argument in arguments
  ]
  if command == "extract" and "stray" not in line:
    filled.append(f"--output={tmp_path / 'out.json'}")
  before = sorted(os.listdir(tmp_path))
  module = importlib.import_module(f"tfplace.bin.{command}")
  assert module.run(filled) == 1
  (error,) = capsys.readouterr().err.strip().splitlines()
  assert len(error) < 2100 and "Error" not in error
  assert words in error
  assert sorted(os.listdir(tmp_path)) == before


def test_programs_are_joined_by_pipes(graph_file, cluster_file):
  first, then = (
    [sys.executable, "-m", f"tfplace.bin.{name}"] for name in COMMANDS[:2]
  )
  given = subprocess.run(
    [*first, f"--graph={graph_file}", "--output=/dev/stdout"],
    capture_output=True,
    check=True,
  )
  arguments = ["--graph=/dev/stdin", f"--cluster={cluster_file}"]
  done = subprocess.run(
    [*then, *arguments, "--strategy=heft", "--output=/dev/stderr", "--json"],
    input=given.stdout,
    capture_output=True,
    check=True,
  )
  assert json.loads(done.stderr)["format"] == "tfplace.placement.v1"
  assert json.loads(done.stdout.splitlines()[-1])["strategy"] == "heft"


def test_place_goes_on_from_a_placement(
  graph_file, cluster_file, tmp_path, capsys
):
  output, left = tmp_path / "p.json", tmp_path / "left.json"
  graph = f"--graph={graph_file}"
  common = [graph, f"--cluster={cluster_file}", "--budget_s=1"]
  assert place.run([*common, f"--output={output}"]) == 0
  init = f"--init_placement={output}"
  capsys.readouterr()
  assert place.run([*common, init, "--json"]) == 0
  # a: 0 to 1; b beside it to 11, c elsewhere from 2 to 12, after a transfer of
  # 100 bytes at 100 bytes a us; d beside c, 12 to 13.
  assert last_json(capsys)["step_time_us"] == 13.0
  assert place.run([*common, init, "--strategy=heft"]) == 1
  assert "annealing, ordered and auto can" in capsys.readouterr().err
  one = Cluster("left", (Device("g1", "GPU", 1e4),))
  formats.save_cluster(one, left)
  assert place.run([graph, f"--cluster={left}", init, "--json"]) == 0
  # All that was on g0 is on g1: 1 + 10 + 10 + 1 us.
  assert last_json(capsys)["step_time_us"] == 22.0

"""--output_baseline and --check of tfplace-place: what grew, and by whom."""

import json
import pathlib
import shlex

import pytest
import yaml

from tfplace import core, formats
from tfplace.bin import place
from tfplace.plan.baseline import compare, make_baseline

WORKFLOW = (
  pathlib.Path(__file__).parents[2] / "examples" / "placement_check.yml"
)
# Layer -> microseconds and bytes of its output. On one device, the chain takes
# 10 + 20 + 30 us. It holds the outputs of two neighbors at a time: 200 bytes.
CHAIN = {"a": (10.0, 100.0), "b": (20.0, 100.0), "c": (30.0, 100.0)}


def chain(layers, name="net", **extra):
  ops = [
    core.OpSpec(f"op_{key}", "X", {"GPU": us}, [size], layer=f"net/{key}")
    for key, (us, size) in layers.items()
  ]
  edges = [(i, 0, i + 1) for i in range(len(ops) - 1)]
  return core.build_graph(name, ops, edges, extra=extra)


@pytest.fixture(name="folder")
def _folder(tmp_path, monkeypatch):
  """The working directory, with clusters of one and of two devices."""
  monkeypatch.chdir(tmp_path)
  one = core.Device("g0", "GPU", 1e4)
  formats.save_cluster(core.Cluster("one", (one,), ()), "one.json")
  two = (one, core.Device("g1", "GPU", 1e4))
  links = (core.Link("g0", "g1", 100.0), core.Link("g1", "g0", 100.0))
  formats.save_cluster(core.Cluster("two", two, links), "two.json")
  return tmp_path


def run(graph, *flags, cluster="one.json"):
  """Exit code of tfplace-place on a graph."""
  formats.save_graph(graph, "g.json")
  chosen = [] if "--strategy" in " ".join(flags) else ["--strategy=auto"]
  source = ["--graph=g.json", f"--cluster={cluster}", "--budget_s=1"]
  return place.run([*source, *chosen, *flags])


def kept(graph, *flags, **options):
  """Writes the baseline b.json of a graph."""
  assert run(graph, "--output_baseline=b.json", *flags, **options) == 0


def refusal(capsys):
  """The one line of an error."""
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("tfplace-place: error: ")
  return line.removeprefix("tfplace-place: error: ")


@pytest.mark.parametrize("strategy", ["auto", "annealing", "brkga", "m_etf"])
def test_an_unchanged_step_passes_with_one_line(strategy, folder, capsys):
  flags = f"--strategy={strategy}"
  kept(chain(CHAIN), flags, cluster="two.json")
  capsys.readouterr()
  assert run(chain(CHAIN), flags, "--check=b.json", cluster="two.json") == 0
  shown = capsys.readouterr()
  told = [x for x in shown.out.splitlines() if x.startswith("Within")]
  assert told == [
    "Within 3% of b.json: the step takes 60 us, before 60 us; the fullest"
    " device holds 200 B, before 200 B."
  ]
  assert shown.err == ""


def test_a_slower_layer_fails_and_is_named(folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  # 70 us after 60.
  assert run(chain({**CHAIN, "c": (40.0, 100.0)}), "--check=b.json") == 1
  assert refusal(capsys) == (
    "the step takes 70 us, 17% more than 60 us: layer 'net/c' takes 40 us"
    " instead of 30 us (--check=b.json, --tolerance=3%); to accept it, run with"
    " --output_baseline=b.json instead of --check"
  )


def test_a_new_layer_fails_and_is_named(folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  assert run(chain({**CHAIN, "d": (5.0, 0.0)}), "--check=b.json") == 1
  assert refusal(capsys).startswith(
    "the step takes 65 us, 8.3% more than 60 us: layer 'net/d' is new and takes"
    " 5 us ("
  )


def test_a_higher_peak_alone_fails_and_names_its_layer(folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  assert run(chain({**CHAIN, "b": (20.0, 150.0)}), "--check=b.json") == 1
  assert refusal(capsys).startswith(
    "the peak of g0 is 250 B, 25% more than 200 B: layer 'net/b' holds 150 B"
    " instead of 100 B ("
  )


def test_a_faster_and_smaller_step_passes(folder):
  kept(chain(CHAIN))
  faster = {"a": (10.0, 100.0), "c": (30.0, 10.0)}
  assert run(chain(faster), "--check=b.json", "--tolerance=0") == 0


def test_a_new_baseline_accepts_the_growth(folder):
  slower = chain({**CHAIN, "c": (40.0, 100.0)})
  kept(chain(CHAIN))
  assert run(slower, "--check=b.json") == 1
  kept(slower)
  assert run(slower, "--check=b.json") == 0


def test_the_layer_on_the_path_is_named_though_another_grew_more(
  folder, capsys
):
  def step(a_us, b_us):
    """`c` waits for `a` on the GPU and `b` on the TPU, side by side."""
    ops = [
      core.OpSpec("op_a", "X", {"GPU": a_us}, [0.0], layer="net/a"),
      core.OpSpec("op_b", "X", {"TPU": b_us}, [0.0], layer="net/b"),
      core.OpSpec("op_c", "X", {"GPU": 10.0}, layer="net/c"),
    ]
    return core.build_graph("net", ops, [(0, 0, 2), (1, 0, 2)])

  devices = (core.Device("g", "GPU"), core.Device("t", "TPU"))
  links = (core.Link("g", "t", 1.0), core.Link("t", "g", 1.0))
  formats.save_cluster(core.Cluster("mixed", devices, links), "mixed.json")
  kept(step(100.0, 20.0), cluster="mixed.json")
  capsys.readouterr()
  # 110 us become 120, whatever b takes below 110.
  assert run(step(110.0, 60.0), "--check=b.json", cluster="mixed.json") == 1
  assert "layer 'net/a' takes 110 us instead of 100 us" in refusal(capsys)


def test_more_traffic_names_the_layer_that_sends_it(folder, capsys):
  def step(size):
    ops = [
      core.OpSpec("op_a", "X", {"GPU": 10.0}, [size], layer="net/a"),
      core.OpSpec("op_b", "X", {"TPU": 10.0}, layer="net/b"),
    ]
    return core.build_graph("net", ops, [(0, 0, 1)])

  devices = (core.Device("g", "GPU"), core.Device("t", "TPU"))
  links = (core.Link("g", "t", 1.0), core.Link("t", "g", 1.0))
  formats.save_cluster(core.Cluster("mixed", devices, links), "mixed.json")
  kept(step(100.0), cluster="mixed.json")
  capsys.readouterr()
  # 10 us, as many as there are bytes, and 10 us; each device holds the tensor.
  assert run(step(150.0), "--check=b.json", cluster="mixed.json") == 1
  line = refusal(capsys)
  assert line.startswith(
    "the step takes 170 us, 42% more than 120 us: layer 'net/a' sends 150 B to"
    " other devices instead of 100 B; the peak of "
  )
  assert "150 B, 50% more than 100 B: layer 'net/a' holds 150 B" in line


def test_a_worse_placement_that_is_found_fails_no_unchanged_step(folder):
  # Two ops without edges: side by side 10 us, on one device 20.
  ops = [core.OpSpec(n, "X", {"GPU": 10.0}, [100.0]) for n in "ab"]
  problem = core.Problem(
    core.build_graph("net", ops, []), formats.load_cluster("two.json")
  )
  baseline = make_baseline(core.Placement(problem, [0, 1]), "auto", 0)
  found = compare(baseline, core.Placement(problem, [0, 0]), 0.03)
  assert found.growths == ()
  assert found.evaluation.step_time_us == 10
  unlike = make_baseline(core.Placement(problem, [0, 0]), "auto", 0)
  worse = compare(unlike, core.Placement(problem, [0, 1]), 0.03)
  assert worse.growths == ()  # The baseline's own leaves g1 empty.


@pytest.mark.parametrize(
  ("tolerance", "code"),
  [
    *(("3%", 0), ("0.03", 0), (".03", 0), (" 2.5 % ", 0), ("0.025", 0)),
    *(("100%", 0), ("2%", 1), ("0.02", 1), ("2.4%", 1), ("0", 1), ("0%", 1)),
  ],
)
def test_a_tolerance_is_a_percentage_or_a_share(tolerance, code, folder):
  kept(chain(CHAIN))
  # 61.5 us after 60 are exactly 2.5% more.
  slower = chain({**CHAIN, "c": (31.5, 100.0)})
  assert run(slower, "--check=b.json", f"--tolerance={tolerance}") == code


@pytest.mark.parametrize(
  ("tolerance", "told"),
  [
    ("3", "would allow 300%: write 3%, or a share below 1"),
    ("1.0", "would allow 100%"),
    *((text, "is not a share such as 3% or 0.03") for text in ("x", "", "%")),
    *(
      (text, "is not a share") for text in ("-3%", "nan", "inf%", "3%%", "1e-2")
    ),
  ],
)
def test_a_bad_tolerance_is_refused(tolerance, told, folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  code = run(chain(CHAIN), "--check=b.json", f"--tolerance={tolerance}")
  assert code == 1
  line = refusal(capsys)
  assert told in line
  assert "--tolerance" in line


def damaged(**changes):
  data = json.loads(pathlib.Path("b.json").read_text())
  data.update(changes)
  return json.dumps({k: v for k, v in data.items() if v != "left out"})


@pytest.mark.parametrize(
  ("content", "told"),
  [
    (lambda: "", "not JSON"),
    (lambda: '{"format": "tfpl', "not JSON"),
    (lambda: "[]", "expected a JSON object"),
    (lambda: damaged(format="tfplace.placement.v1"), "tfplace.placement.v1"),
    (lambda: damaged(layers="left out"), "'layers'"),
    (lambda: damaged(layers=[{"name": "a"}]), "'held_bytes'"),
    (lambda: damaged(step_time_us=-1), "-1"),
    (lambda: damaged(batch_size=2.5), "2.5"),
    (lambda: damaged(order="fifo"), "order: 'fifo' is not one of"),
    (lambda: damaged(assignments={"op_a": 3}), "'op_a'"),
    (lambda: damaged(devices=[{"name": "g0"}]), "peak_memory_bytes"),
  ],
)
def test_a_damaged_baseline_is_refused(content, told, folder, capsys):
  kept(chain(CHAIN))
  pathlib.Path("b.json").write_text(content())
  capsys.readouterr()
  assert run(chain(CHAIN), "--check=b.json") == 1
  line = refusal(capsys)
  assert line.startswith("b.json: ")
  assert told in line


def test_a_missing_baseline_is_refused(folder, capsys):
  assert run(chain(CHAIN), "--check=none.json") == 1
  assert "none.json: cannot be read: No such file" in refusal(capsys)


EIGHT = {"batch_size": 8, "training": True, "costs": "kernels"}


@pytest.mark.parametrize(
  ("other", "flags", "told"),
  [
    (chain(CHAIN, "other", **EIGHT), (), "graph 'net', and this step has 'o"),
    (
      chain(CHAIN, **{**EIGHT, "batch_size": 4}),
      (),
      "batch size 8, and this step has 4",
    ),
    (
      chain(CHAIN, **{**EIGHT, "training": False}),
      (),
      "training True, and this step has False",
    ),
    (
      chain(CHAIN, **{**EIGHT, "costs": "grappler"}),
      (),
      "costs 'kernels', and this step has 'grappler'",
    ),
    (
      chain(CHAIN, **EIGHT),
      ("--strategy=annealing",),
      "strategy 'auto', and --strategy=annealing",
    ),
    (chain(CHAIN, **EIGHT), ("--order=rank",), "order 'arrival', and --order="),
    (
      chain(CHAIN, **EIGHT),
      ("--max_memory=g0=5000",),
      "device 'g0' with 10000 bytes, and cluster 'one' has it with 5000 bytes",
    ),
  ],
)
def test_a_baseline_of_another_step_is_refused(
  other, flags, told, folder, capsys
):
  kept(chain(CHAIN, **EIGHT))
  capsys.readouterr()
  assert run(other, "--check=b.json", *flags) == 1
  line = refusal(capsys)
  assert line.startswith("b.json: the baseline is of ")
  assert told in line
  assert "write a new baseline" in line


def test_a_baseline_of_another_cluster_is_refused(folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  assert run(chain(CHAIN), "--check=b.json", cluster="two.json") == 1
  assert "cluster 'one', and this step has 'two'" in refusal(capsys)


def test_a_baseline_of_other_links_is_refused(folder, capsys):
  kept(chain(CHAIN), cluster="two.json")
  text = pathlib.Path("two.json").read_text()
  pathlib.Path("two.json").write_text(
    text.replace('per_us": 100', 'per_us": 50')
  )
  capsys.readouterr()
  assert run(chain(CHAIN), "--check=b.json", cluster="two.json") == 1
  assert "cluster 'two' with other devices or links" in refusal(capsys)


def test_a_baseline_without_an_op_of_the_graph_is_refused(folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  assert run(chain({"x": (1.0, 1.0)}), "--check=b.json") == 1
  assert "it has none of graph 'net'" in refusal(capsys)


@pytest.mark.parametrize(
  ("flags", "told"),
  [
    (["--tolerance=3%"], "--tolerance=3% is what --check allows"),
    (["--check=b.json", "--init_placement=p.json"], "leave --init_placement"),
    (["--check=b.json", "--output_baseline=./b.json"], "both name 'b.json'"),
    (["--output_baseline=no/b.json"], "no"),
  ],
)
def test_flags_that_do_not_go_together_are_refused(flags, told, folder, capsys):
  kept(chain(CHAIN), "--output=p.json")
  capsys.readouterr()
  assert run(chain(CHAIN), *flags) == 1
  assert told in refusal(capsys)


@pytest.mark.parametrize(("c_us", "code"), [(30.0, 0), (40.0, 1)])
def test_json_stays_the_last_line(c_us, code, folder, capsys):
  kept(chain(CHAIN))
  capsys.readouterr()
  now = chain({**CHAIN, "c": (c_us, 100.0)})
  assert run(now, "--check=b.json", "--json", "--output=p.json") == code
  last = capsys.readouterr().out.splitlines()[-1]
  assert json.loads(last)["step_time_us"] == 30 + c_us
  assert formats.load_assignments("p.json")  # It is written in any case.


def save_model(width=64, extra=False, path="model.keras"):
  """Saves a model of three layers, or of four, in new files."""
  import keras

  inputs = keras.Input((512,), name="features")
  x = keras.layers.Dense(width, activation="relu", name="hidden")(inputs)
  if extra:
    x = keras.layers.Dense(4096, activation="relu", name="extra")(x)
  x = keras.layers.Dense(64, activation="relu", name="narrow")(x)
  model = keras.Model(inputs, keras.layers.Dense(3, name="head")(x), name="net")
  model.compile(optimizer="sgd", loss="mse", jit_compile=False)
  model.save(path)


SOURCE = ["--keras_model=model.keras", "--batch_size=256", "--cluster=p100x2"]
QUICK = [*SOURCE, "--budget_s=1", "--graph_cache_dir="]


def test_layers_of_a_keras_model_are_named(folder, capsys):
  save_model()
  assert place.run([*QUICK, "--output_baseline=b.json"]) == 0
  assert place.run([*QUICK, "--check=b.json", "--tolerance=0%"]) == 0
  capsys.readouterr()
  save_model(width=4096)
  assert place.run([*QUICK, "--check=b.json"]) == 1
  assert "layer 'net/hidden' takes " in refusal(capsys)
  save_model(extra=True)
  assert place.run([*QUICK, "--check=b.json"]) == 1
  assert "layer 'net/extra' is new and takes " in refusal(capsys)
  batch = [flag.replace("256", "64") for flag in QUICK]
  assert place.run([*batch, "--check=b.json"]) == 1
  assert "batch size 256, and this step has 64" in refusal(capsys)


def test_the_baseline_says_how_its_step_is_split(folder, capsys):
  save_model()
  split = ["--microbatches=2", "--output_baseline=b.json"]
  assert place.run([*QUICK, *split]) == 0
  assert formats.load_baseline("b.json").variant.startswith("in 2 microbatches")
  for flags in ([], ["--microbatches=2"], ["--microbatches=auto"]):
    capsys.readouterr()
    assert place.run([*QUICK, "--check=b.json", "--json", *flags]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["microbatches"] == 2
  assert place.run([*QUICK, "--check=b.json", "--microbatches=4"]) == 1
  assert "is of 2 microbatches" in refusal(capsys)


def test_the_workflow_runs_its_check(folder, capsys):
  """Runs the last command of the example, but searches for a second."""
  workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
  assert workflow[True] == ["pull_request"]  # YAML 1.1 reads "on" so.
  (job,) = workflow["jobs"].values()
  commands = [step["run"] for step in job["steps"] if "run" in step]
  assert any("pip install" in command for command in commands)
  words = shlex.split(commands[-1])
  assert words[0] == "tfplace-place"
  flags = ["--budget_s=1" if "--budget_s" in w else w for w in words[1:]]
  checks = [w for w in flags if w.startswith(("--check", "--tolerance"))]
  assert len(checks) == 2
  save_model()
  file = checks[0].replace("--check", "--output_baseline")
  assert place.run([w for w in flags if w not in checks] + [file]) == 0
  assert place.run(flags) == 0
  save_model(extra=True)
  capsys.readouterr()
  assert place.run(flags) == 1
  assert "layer 'net/extra' is new" in refusal(capsys)

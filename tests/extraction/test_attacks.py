"""Files of attackers: each is refused, and nothing of theirs has happened.

What an attack would do is done to a canary: a file that it would overwrite,
delete or read. Where reading would leave no trace, the refusal is what counts,
and that the model is not loaded at all.
"""

import functools
import itertools
import os
import pathlib
import time

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.trackable import resource

from tfplace.errors import ExtractionError, MeasurementError
from tfplace.extraction import trace_graph_def, trace_saved_model
from tfplace.extraction.safety import side_effects

tf1 = tf.compat.v1
raw = tf.raw_ops
LOOKUP = {"key_dtype": tf.string, "value_dtype": tf.int64}


class Canary:
  """A folder in which an attack would leave a trace."""

  def __init__(self, folder):
    self.folder = folder / "canary"
    (self.folder / "old").mkdir(parents=True)
    self.file = self.folder / "file"
    self.old = self.folder / "old"
    self.restore()

  def restore(self):
    for path in self.folder.iterdir():
      if path not in (self.old, self.file):
        path.unlink()
    self.old.mkdir(exist_ok=True)
    self.file.write_text("canary\n")
    (self.old / "part").write_text("canary\n")

  def sings(self):
    files = {
      str(path.relative_to(self.folder)): path.read_text(errors="replace")
      for path in self.folder.rglob("*")
      if path.is_file()
    }
    return files == {"file": "canary\n", "old/part": "canary\n"}


@pytest.fixture
def canary(tmp_path):
  return Canary(tmp_path)


def _table():
  return raw.HashTableV2(**LOOKUP)


def _read_table(path):
  raw.InitializeTableFromTextFileV2(
    table_handle=_table(),
    filename=path,
    key_index=-2,
    value_index=-1,
    vocab_size=-1,
    delimiter="\t",
  )


def _print(stream):
  raw.PrintV2(input=tf.constant("bad"), output_stream=stream)


def _save(canary):
  return {"filename": str(canary.file), "tensor_names": ["x"], "data": [1.0]}


# Name -> what an initialiser would do to the canary, and whether that shows.
DEEDS = {
  "write": lambda c: tf.io.write_file(str(c.file), "bad"),
  "save": lambda c: raw.Save(**_save(c)),
  "save_slices": lambda c: raw.SaveSlices(
    **_save(c), shapes_and_slices=["1 0,1"]
  ),
  "save_v2": lambda c: raw.SaveV2(
    prefix=str(c.file),
    tensor_names=["x"],
    shape_and_slices=[""],
    tensors=[tf.constant(1.0)],
  ),
  "merge": lambda c: raw.MergeV2Checkpoints(
    checkpoint_prefixes=[str(c.old / "part")],
    destination_prefix=str(c.folder / "new"),
    delete_old_dirs=True,
  ),
  "print": lambda c: _print(f"file://{c.file}"),
  "table": lambda c: _read_table(str(c.file)),
  "restore": lambda c: raw.RestoreV2(
    prefix=str(c.file),
    tensor_names=["x"],
    shape_and_slices=[""],
    dtypes=[tf.float32],
  ),
  "python": lambda c: tf.numpy_function(
    lambda: pathlib.Path(c.file).write_text("bad"), [], tf.int64
  ),
  "abort": lambda c: raw.Abort(error_msg="", exit_without_error=True),
}


class _Resource(resource.CapturableResource):
  """A resource of which one part does something."""

  def __init__(self, part, deed):
    super().__init__()
    self._part = part
    self._deed = deed

  def _create_resource(self):
    self._act("create")
    return _table()

  def _initialize(self):
    self._act("initialize")

  def _destroy_resource(self):
    self._act("destroy")

  def _act(self, part):
    # Only while it is traced: none of its own happens here.
    if part == self._part and not tf.executing_eagerly():
      self._deed()


def _export(folder, module, **functions):
  """A SavedModel of TensorFlow 2 that also doubles a number."""
  signature = [tf.TensorSpec([2], tf.float32, "x")]
  module.serve = tf.function(lambda x: x * 2.0, input_signature=signature)
  for name, function in functions.items():
    setattr(module, name, tf.function(function, input_signature=[]))
  tf.saved_model.save(module, str(folder), signatures=module.serve)
  return folder


def _of_two(folder, part, deed):
  module = tf.Module()
  module.resource = _Resource(part, deed)
  module.handle = module.resource.resource_handle
  return _export(folder, module)


def _of_one(folder, deed=None, part="main_op", assets=()):
  """A SavedModel of TensorFlow 1 that adds a variable to a number.

  Args:
    folder: where it will be.
    deed: op or tensor that does something; None for none.
    part: that needs it: "main_op", "signature" or "restore".
    assets: file names in the collection of assets.
  """
  with tf.Graph().as_default(), tf1.Session() as session:
    x = tf1.placeholder(tf.float32, (2,), name="x")
    w = tf1.get_variable("w", (2,), use_resource=True)
    names = [tf.constant(str(path), name="asset") for path in assets]
    for name in names:
      tf1.add_to_collection(tf1.GraphKeys.ASSET_FILEPATHS, name)
    acts = [deed(*names)] if deed else []
    acts = [act for act in acts if act is not None]
    with tf.control_dependencies(acts if part == "signature" else []):
      y = tf.add(x, w, name="y")
    session.run(w.initializer)
    builder = tf1.saved_model.Builder(str(folder))
    builder.add_meta_graph_and_variables(
      session,
      ["serve"],
      signature_def_map={
        "serving_default": tf1.saved_model.predict_signature_def(
          {"x": x}, {"y": y}
        )
      },
      assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
      main_op=tf.group(*acts) if part == "main_op" else None,
    )
    builder.save()
  return folder


def _of_one_lazily(folder, deed, **options):
  """As `_of_one`, of which the deed gives an op."""

  def act(*names):
    before = set(tf1.get_default_graph().get_operations())
    deed(*names)
    return next(
      op
      for op in reversed(tf1.get_default_graph().get_operations())
      if op not in before
    )

  return _of_one(folder, act, **options)


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("part", ["create", "initialize", "destroy"])
def test_a_resource_of_tensorflow_2_does_nothing(tmp_path, canary, part, deed):
  model = _of_two(tmp_path / "model", part, lambda: DEEDS[deed](canary))
  assert canary.sings()
  with pytest.raises(ExtractionError, match="--allow_side_effects"):
    trace_saved_model(model)
  assert canary.sings()


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("part", ["main_op", "signature"])
def test_a_graph_of_tensorflow_1_does_nothing(tmp_path, canary, part, deed):
  model = _of_one_lazily(
    tmp_path / "model", lambda: DEEDS[deed](canary), part=part
  )
  canary.restore()
  with pytest.raises(ExtractionError, match="--allow_side_effects"):
    trace_saved_model(model)
  assert canary.sings()


@pytest.mark.parametrize("deed", ["write", "save", "print"])
def test_what_is_refused_is_real(tmp_path, canary, deed):
  model = _of_two(tmp_path / "m", "initialize", lambda: DEEDS[deed](canary))
  trace_saved_model(model, allow_side_effects=True)
  assert not canary.sings()


def _edited(folder, edit):
  """Edits the main file of a SavedModel."""
  path = folder / "saved_model.pb"
  content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
  edit(content.meta_graphs[0])
  path.write_bytes(content.SerializeToString())
  return folder


def _vocabulary(tmp_path):
  words = tmp_path / "words.txt"
  words.write_text("a\nb\n")
  return words


def _with_vocabulary(tmp_path, version):
  """A SavedModel with a table of an asset, and its asset."""
  words = _vocabulary(tmp_path)
  if version == 1:
    model = _of_one_lazily(tmp_path / "model", _read_table, assets=[words])
  else:
    module = tf.Module()
    init = tf.lookup.TextFileInitializer(
      str(words),
      *(tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
      *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
    )
    module.table = tf.lookup.StaticVocabularyTable(init, num_oov_buckets=1)
    model = _export(tmp_path / "model", module)
  words.unlink()  # the model has its own copy
  return model, model / "assets" / "words.txt"


VERSIONS = pytest.mark.parametrize("version", [1, 2])


@VERSIONS
def test_a_table_of_an_asset_is_read(tmp_path, version):
  model, _ = _with_vocabulary(tmp_path, version)
  assert trace_saved_model(model).feeds


@VERSIONS
def test_an_asset_that_is_a_link_to_the_outside_is_refused(
  tmp_path, canary, version
):
  model, asset = _with_vocabulary(tmp_path, version)
  asset.unlink()
  asset.symlink_to(canary.file)
  with pytest.raises(ExtractionError, match=r"asset 'words.txt' lies outside"):
    trace_saved_model(model)


@VERSIONS
@pytest.mark.parametrize("relative", [True, False])
def test_an_asset_named_outside_is_refused(tmp_path, canary, version, relative):
  model, _ = _with_vocabulary(tmp_path, version)
  path = str(canary.file)
  if relative:
    path = os.path.relpath(path, model / "assets")

  def rename(meta_graph):
    if version == 2:
      meta_graph.asset_file_def[0].filename = path
      return
    collection = meta_graph.collection_def["saved_model_assets"].any_list
    asset = meta_graph_pb2.AssetFileDef()
    collection.value[0].Unpack(asset)
    asset.filename = path
    collection.value[0].Pack(asset)

  with pytest.raises(ExtractionError, match="lies outside of the model's"):
    trace_saved_model(_edited(model, rename))


def test_an_asset_s_tensor_has_no_file_of_its_own(tmp_path, canary):
  # A signature reads a table of the name that only the loader may fill in.
  model = _of_one_lazily(
    *(tmp_path / "model", _read_table),
    part="signature",
    assets=[_vocabulary(tmp_path)],
  )

  def rename(meta_graph):
    node = next(n for n in meta_graph.graph_def.node if n.name == "asset")
    node.attr["value"].tensor.string_val[:] = [bytes(canary.file)]

  with pytest.raises(ExtractionError, match="placeholder"):
    trace_saved_model(_edited(model, rename))


def test_the_checkpoint_s_name_is_the_loader_s(tmp_path, canary):
  # The initialisation restores from the name that the saver has by itself.
  def rename(meta_graph):
    name = meta_graph.saver_def.filename_tensor_name.split(":")[0]
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    nodes[name].op = "Const"
    del nodes[name].input[:]
    nodes[name].attr["value"].CopyFrom(
      tf1.AttrValue(tensor=tf.make_tensor_proto(str(canary.file)))
    )
    init = meta_graph.collection_def["saved_model_main_op"].node_list
    init.value[:] = ["save/RestoreV2"]

  model = _edited(_of_one(tmp_path / "model"), rename)
  with pytest.raises(ExtractionError, match="placeholder"):
    trace_saved_model(model)


@pytest.mark.parametrize("use", ["saver", "collection"])
def test_a_restore_op_that_saves_is_refused(tmp_path, canary, use):
  def swap(meta_graph):
    node = meta_graph.graph_def.node.add(name="bad", op="Save")
    for text in (str(canary.file), ["x"], [1.0]):
      const = meta_graph.graph_def.node.add(
        name=f"c{len(meta_graph.graph_def.node)}", op="Const"
      )
      proto = tf.make_tensor_proto(text)
      const.attr["value"].tensor.CopyFrom(proto)
      const.attr["dtype"].type = proto.dtype
      node.input.append(const.name)
    node.attr["T"].list.type.append(tf.float32.as_datatype_enum)
    if use == "saver":
      meta_graph.saver_def.restore_op_name = "bad"
    else:
      meta_graph.collection_def["legacy_init_op"].node_list.value[:] = ["bad"]

  model = _edited(_of_one(tmp_path / "model"), swap)
  with pytest.raises(
    ExtractionError, match=r"'bad' \(Save\) can read or write"
  ):
    trace_saved_model(model)
  assert canary.sings()


def test_a_file_s_name_given_by_a_caller_is_no_asset(tmp_path, canary):
  # The function that reads is called twice: with an asset, and with a file.
  module = tf.Module()
  module.asset = tf.saved_model.Asset(str(_vocabulary(tmp_path)))

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def read(name):
    _read_table(name)
    return 1

  model = _export(
    *(tmp_path / "model", module),
    good=lambda: read(module.asset.asset_path),
    bad=lambda: read(tf.constant(str(canary.file))),
  )
  with pytest.raises(ExtractionError, match="InitializeTableFromTextFileV2"):
    trace_saved_model(model)


def _constant_for_asset(meta_graph, path):
  """The object that was an asset is a constant by its registered name."""
  for name in ("", "constant"):
    node = meta_graph.graph_def.node.add(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(path))
    node.attr["dtype"].type = tf.string.as_datatype_enum
  (asset,) = [
    n
    for n in meta_graph.object_graph_def.nodes
    if n.WhichOneof("kind") == "asset"
  ]
  asset.registered_name = "tf.TrackableConstant"


def _resource_for_asset(meta_graph, path):
  """The function that reads is bound to another object."""
  objects = meta_graph.object_graph_def
  number = len(objects.nodes)
  objects.nodes.add().constant.operation = "constant"
  _constant_for_asset(meta_graph, path)
  for function in objects.concrete_functions.values():
    for i, bound in enumerate(function.bound_inputs):
      if objects.nodes[bound].registered_name == "tf.TrackableConstant":
        function.bound_inputs[i] = number


def _unbound(meta_graph, path):
  """The function that reads is said to capture nothing."""
  for function in meta_graph.object_graph_def.concrete_functions.values():
    del function.bound_inputs[:]


def _unlisted(meta_graph, path):
  """It is not even among the functions that capture something."""
  meta_graph.object_graph_def.concrete_functions.clear()


def _two_of_one_name(meta_graph, path):
  for function in meta_graph.graph_def.library.function:
    for node in list(function.node_def):
      if node.op == "InitializeTableFromTextFileV2":
        function.node_def.add(name=node.name, op="NoOp")


def _in_circles(meta_graph, path):
  for function in meta_graph.graph_def.library.function:
    for node in list(function.node_def):
      if node.op == "InitializeTableFromTextFileV2":
        node.input[1] = "a:output:0"
        for name, source in (("a", "b"), ("b", "a")):
          again = function.node_def.add(name=name, op="Identity")
          again.input.append(f"{source}:output:0")


@pytest.mark.parametrize(
  "attack",
  [
    *(_constant_for_asset, _resource_for_asset, _unbound, _unlisted),
    *(_two_of_one_name, _in_circles),
  ],
)
def test_an_argument_that_is_no_asset_names_no_file(tmp_path, canary, attack):
  model, _ = _with_vocabulary(tmp_path, 2)
  edit = functools.partial(attack, path=str(canary.file))
  with pytest.raises(ExtractionError, match="FromTextFileV2\\) of function"):
    trace_saved_model(_edited(model, edit))


def test_a_long_graph_is_judged_in_linear_time(tmp_path):
  """Of which every node follows from one that saves, written last first."""
  model = _of_one(tmp_path / "model")

  def add(meta_graph):
    names = [f"n{i}" for i in range(20_000)]
    for name, source in itertools.pairwise([*names, "save/SaveV2"]):
      node = meta_graph.graph_def.node.add(name=name, op="NoOp")
      node.input.append(f"^{source}")

  start = time.perf_counter()
  assert trace_saved_model(_edited(model, add)).variables
  assert time.perf_counter() - start < 10


def test_a_graph_is_loaded_as_it_was_checked(tmp_path, canary, monkeypatch):
  """Another model takes the place of the good one when TensorFlow loads."""
  good = _export(tmp_path / "model", tf.Module())
  bad = _of_two(tmp_path / "bad", "initialize", lambda: DEEDS["write"](canary))
  load = tf.saved_model.load

  def late(folder):
    os.replace(bad / "saved_model.pb", good / "saved_model.pb")
    return load(folder)

  monkeypatch.setattr(tf.saved_model, "load", late)
  assert trace_saved_model(good).feeds
  assert canary.sings()


def _calls(*levels, times=1):
  """A library in which each function calls the next one some times."""
  graph_def = tf1.GraphDef()
  for name, called in itertools.pairwise(levels):
    function = graph_def.library.function.add()
    function.signature.name = name
    for number in range(times):
      node = function.node_def.add(name=f"n{number}", op="PartitionedCall")
      node.attr["f"].func.name = called
  graph_def.node.add(name="start", op="PartitionedCall").attr[
    "f"
  ].func.name = levels[0]
  return graph_def


TREES = {
  "itself": (_calls("a", "a"), "is recursive"),
  "by another": (_calls("a", "b", "a"), "is recursive"),
  "blow-up": (_calls(*(f"f{i}" for i in range(30)), times=4), "nodes, more"),
  "deep": (_calls(*(f"f{i}" for i in range(300))), "nested deeper than 100"),
}


@pytest.mark.parametrize("tree", TREES)
def test_calls_are_counted_before_tensorflow_follows_them(tmp_path, tree):
  graph_def, why = TREES[tree]
  path = tmp_path / "g.pb"
  path.write_bytes(graph_def.SerializeToString())
  with pytest.raises(ExtractionError, match=why):
    trace_graph_def(path)

  def add(meta_graph):
    meta_graph.graph_def.library.MergeFrom(graph_def.library)

  for version in (
    _export(tmp_path / "two", tf.Module()),
    _of_one(tmp_path / "one"),
  ):
    with pytest.raises(ExtractionError, match=why):
      trace_saved_model(_edited(version, add))


def test_a_function_given_to_a_function_counts_as_called():
  graph_def = _calls("a", "b")
  attr = graph_def.library.function[0].node_def[0].attr["f"].func.attr["g"]
  attr.func.name = "a"
  path_free = side_effects.when_run(graph_def)
  assert path_free is None
  from tfplace.extraction.safety import limits

  with pytest.raises(ExtractionError, match="is recursive"):
    limits.check_calls(graph_def)


def _node(op, **attrs):
  graph_def = tf1.GraphDef()
  function = graph_def.library.function.add()
  function.signature.name = "body"
  node = function.node_def.add(name="n", op=op)
  for key, value in attrs.items():
    node.attr[key].CopyFrom(value)
  return graph_def


DECIDING = {
  "PrintV2": ["output_stream"],
  "DecodeProtoV2": ["descriptor_source"],
  "EncodeProto": ["descriptor_source"],
  "FixedUnigramCandidateSampler": ["vocab_file"],
  "PartitionedCall": ["f", "config_proto", "config", "executor_type"],
  "StatefulPartitionedCall": ["f", "config_proto", "config", "executor_type"],
  "While": ["body", "cond"],
  "If": ["then_branch", "else_branch"],
  "Case": ["branches"],
  "SymbolicGradient": ["f"],
}
PAIRS = [(op, name) for op, names in DECIDING.items() for name in names]


@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_an_attribute_that_decides_is_not_left_to_the_caller(op, name):
  assert side_effects.when_run(_node(op)) is None
  value = tf1.AttrValue(placeholder="out")
  assert side_effects.when_run(_node(op, **{name: value}))


@pytest.mark.parametrize(
  ("op", "name"), [p for p in PAIRS if p[0] in list(DECIDING)[:4]]
)
@pytest.mark.parametrize(
  "value",
  [
    tf1.AttrValue(i=1),
    tf1.AttrValue(b=True),
    tf1.AttrValue(),
    tf1.AttrValue(list=tf1.AttrValue.ListValue(s=[b"file:///x"])),
  ],
)
def test_an_attribute_that_decides_has_its_own_kind(op, name, value):
  assert side_effects.when_run(_node(op, **{name: value}))


def test_a_type_may_be_left_to_the_caller():
  value = tf1.AttrValue(placeholder="T")
  assert side_effects.when_run(_node("PrintV2")) is None
  assert side_effects.when_run(_node("Identity", T=value)) is None


@pytest.mark.parametrize("as_op", [False, True])
def test_measuring_a_loop_prints_to_no_file_that_its_caller_names(
  canary, monkeypatch, as_op
):
  """The attack as it was found: through the function of a loop's body."""
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure import harness

  graph_def = _node("PrintV2", output_stream=tf1.AttrValue(placeholder="out"))
  if as_op:
    call = graph_def.node.add(name="loop", op="body")
    call.attr["out"].s = f"file://{canary.file}".encode()
  else:
    call = graph_def.node.add(name="loop", op="While")
    body = call.attr["body"].func
    body.name = "body"
    body.attr["out"].s = f"file://{canary.file}".encode()
  traced = TracedStep("bad", graph_def, {}, (), ("loop",), {}, False)
  monkeypatch.setattr(harness, "_check", lambda *_: None)
  with pytest.raises(MeasurementError, match=r"'n' \(PrintV2\)"):
    harness.MeasurementHarness(None, traced, None)
  assert canary.sings()

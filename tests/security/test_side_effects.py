"""Side effects that untrusted graphs may not have, even while they load."""

import pathlib

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.trackable import resource

from tfplace.errors import ExtractionError
from tfplace.extraction import trace_graph_def, trace_saved_model
from tfplace.extraction.safety import side_effects

PYTHON = "can run Python code"
FILES = "can read or write files"
PROCESSES = "can talk to other processes"


def graph_of(op, **attrs):
  graph_def = tf.compat.v1.GraphDef()
  node = graph_def.node.add(name="x", op=op)
  for key, value in attrs.items():
    node.attr[key].s = value
  return graph_def


@pytest.mark.parametrize(
  ("op", "what"),
  [
    *((op, FILES) for op in ("WriteFile", "ReadFile", "MatchingFiles")),
    *((op, FILES) for op in ("SaveV2", "RestoreV2", "MergeV2Checkpoints")),
    *((op, FILES) for op in ("TextLineDataset", "TFRecordDatasetV2")),
    *((op, FILES) for op in ("WholeFileReaderV2", "ReaderReadV2")),
    *((op, FILES) for op in ("CreateSummaryFileWriter", "CacheDataset")),
    *((op, FILES) for op in ("ImmutableConst", "Skipgram", "RecordInput")),
    *((op, FILES) for op in ("DebugIdentityV3", "DumpTensor")),
    *((op, FILES) for op in ("InitializeTableFromTextFileV2",)),
    *((op, PYTHON) for op in ("PyFunc", "EagerPyFunc", "PyFuncStateless")),
    *((op, PROCESSES) for op in ("RpcClient", "Send", "_Recv")),
    *((op, PROCESSES) for op in ("RemoteCall", "CollectiveReduceV2")),
    ("DataServiceDatasetV4", PROCESSES),
    ("FileSystemSetConfiguration", FILES),
    ("XlaCustomCallV2", "may act on more than the step's own"),
    ("DatasetFromGraph", FILES),  # a whole graph in a string
  ],
)
def test_op_that_reaches_beyond_the_step_is_found(op, what):
  found = side_effects.when_run(graph_of(op))
  assert what in str(found)
  assert f"op 'x' ({op})" in str(found)


@pytest.mark.parametrize(
  "op",
  [
    *("MatMul", "VarHandleOp", "ReadVariableOp", "AssignSubVariableOp"),
    *(
      "ResourceApplyAdam",
      "ResourceScatterAdd",
      "RandomUniform",
      "Multinomial",
    ),
    *("StatefulPartitionedCall", "While", "If", "Assert", "TensorArrayV3"),
    *("HashTableV2", "LookupTableFindV2", "FIFOQueueV2", "CudnnRNNV3"),
    *("DecodeJpeg", "ParseExampleV2", "ScalarSummary", "ShardedFilename"),
  ],
)
def test_op_that_keeps_to_the_step_passes(op):
  assert op_def_registry.get(op) is not None
  assert side_effects.when_run(graph_of(op)) is None


def test_a_stateful_op_that_nobody_has_judged_is_refused():
  assert op_def_registry.get("WorkerHeartbeat").is_stateful
  assert "may act on more" in str(
    side_effects.when_run(graph_of("WorkerHeartbeat"))
  )


@pytest.mark.parametrize(
  ("op", "attribute", "harmless", "harmful"),
  [
    ("PrintV2", "output_stream", b"stderr", b"file:///tmp/x"),
    ("DecodeProtoV2", "descriptor_source", b"local://", b"/etc/passwd"),
    ("EncodeProto", "descriptor_source", b"bytes://x", b"/etc/passwd"),
    ("FixedUnigramCandidateSampler", "vocab_file", b"", b"/etc/passwd"),
  ],
)
def test_a_file_named_by_an_attribute_is_found(
  op, attribute, harmless, harmful
):
  assert not side_effects.when_run(graph_of(op, **{attribute: harmless}))
  assert side_effects.when_run(graph_of(op, **{attribute: harmful}))


def test_functions_are_looked_through_whether_called_or_not():
  graph_def = tf.compat.v1.GraphDef()
  function = graph_def.library.function.add()
  function.signature.name = "hidden"
  function.node_def.add(name="w", op="WriteFile")
  found = side_effects.when_run(graph_def)
  assert "op 'w' (WriteFile) of function 'hidden'" in str(found)


def test_importing_a_graph_reads_no_file_unless_it_may(tmp_path):
  # TensorFlow would read it, to know how long "long" is.
  secret = tmp_path / "seven"
  secret.write_text("7")
  with tf.Graph().as_default() as graph:
    text = tf.raw_ops.ReadFile(filename=tf.constant(str(secret)), name="read")
    length = tf.strings.to_number(text, tf.int32)
    tf.fill(tf.reshape(length, [1]), 1.0, name="long")
  path = tmp_path / "graph.pb"
  path.write_bytes(graph.as_graph_def().SerializeToString())
  with pytest.raises(ExtractionError, match=r"'read' \(ReadFile\)") as caught:
    trace_graph_def(path)
  assert "--allow_side_effects" in str(caught.value)
  assert caught.value.op == "read"
  traced = trace_graph_def(path, allow_side_effects=True)
  assert any(node.name == "read" for node in traced.graph_def.node)


class _Writer(resource.CapturableResource):
  """A resource that writes a file when it is initialised."""

  def __init__(self, path):
    super().__init__()
    self._path = path

  def _create_resource(self):
    return tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)

  def _initialize(self):
    with tf.control_dependencies([tf.io.write_file(self._path, "bad")]):
      return tf.no_op()


def test_loading_a_saved_model_writes_no_file_unless_it_may(tmp_path):
  written = tmp_path / "written"
  module = tf.Module()
  module.writer = _Writer(str(written))
  module.handle = module.writer.resource_handle
  signature = [tf.TensorSpec([2], tf.float32, "x")]
  module.serve = tf.function(lambda x: x + 1.0, input_signature=signature)
  folder = tmp_path / "model"
  tf.saved_model.save(module, str(folder), signatures=module.serve)
  written.unlink(missing_ok=True)
  with pytest.raises(ExtractionError, match=r"\(WriteFile\) of function"):
    trace_saved_model(folder)
  assert not written.exists()
  trace_saved_model(folder, allow_side_effects=True)
  assert written.exists()  # what is refused is real


def test_a_saved_model_with_variables_and_a_vocabulary_loads(tmp_path):
  words = tmp_path / "words.txt"
  words.write_text("a\nb\n")
  module = tf.Module()
  module.table = tf.lookup.StaticVocabularyTable(
    tf.lookup.TextFileInitializer(
      str(words),
      *(tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
      *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
    ),
    num_oov_buckets=1,
  )
  module.scale = tf.Variable(2.0)
  signature = [tf.TensorSpec([2], tf.float32, "x")]
  module.serve = tf.function(
    lambda x: x * module.scale, input_signature=signature
  )
  folder = tmp_path / "model"
  tf.saved_model.save(module, str(folder), signatures=module.serve)
  assert trace_saved_model(folder).variables
  assert pathlib.Path(folder).is_dir()

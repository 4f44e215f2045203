"""Side effects that untrusted graphs may not have, even while they load."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfplace.errors import ExtractionError
from tfplace.extraction.graph_def import trace_graph_def
from tfplace.extraction.safety import side_effects


def graph_of(op, **attrs):
  graph_def = tf.compat.v1.GraphDef()
  node = graph_def.node.add(name="x", op=op)
  for key, value in attrs.items():
    node.attr[key].s = value
  return graph_def


OUTSIDE = {
  "can read or write files": (
    "WriteFile ReadFile MatchingFiles SaveV2 RestoreV2 MergeV2Checkpoints"
    " TextLineDataset TFRecordDatasetV2 WholeFileReaderV2 ReaderReadV2"
    " CreateSummaryFileWriter CacheDataset ImmutableConst Skipgram RecordInput"
    " DebugIdentityV3 DumpTensor InitializeTableFromTextFileV2"
    " FileSystemSetConfiguration DatasetFromGraph"  # a graph in a string
  ),
  "can run Python code": "PyFunc EagerPyFunc PyFuncStateless",
  "can talk to other processes": (
    "RpcClient Send _Recv RemoteCall CollectiveReduceV2 DataServiceDatasetV4"
  ),
  # The last one is stateful, and nobody has judged it.
  "may act on more than the step's own": "XlaCustomCallV2 WorkerHeartbeat",
}
INSIDE = (
  "MatMul VarHandleOp ReadVariableOp AssignSubVariableOp ResourceApplyAdam"
  " ResourceScatterAdd RandomUniform Multinomial StatefulPartitionedCall While"
  " If Assert TensorArrayV3 HashTableV2 LookupTableFindV2 FIFOQueueV2"
  " CudnnRNNV3 DecodeJpeg ParseExampleV2 ScalarSummary ShardedFilename"
)


@pytest.mark.parametrize(
  ("op", "what"),
  [(op, what) for what, ops in OUTSIDE.items() for op in ops.split()],
)
def test_op_that_reaches_beyond_the_step_is_found(op, what):
  found = side_effects.when_run(graph_of(op))
  assert what in str(found)
  assert f"op 'x' ({op})" in str(found)


@pytest.mark.parametrize("op", INSIDE.split())
def test_op_that_keeps_to_the_step_passes(op):
  assert op_def_registry.get(op) is not None
  assert side_effects.when_run(graph_of(op)) is None


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

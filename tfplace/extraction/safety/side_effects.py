"""Detection of ops with side effects on files, processes, Python or network.

All code that runs an untrusted graph, or lets TensorFlow load or import one,
checks it here first. The check is an allowlist: a stateful op (TensorFlow's own
mark of ops that do more than compute) passes only if it is known to affect only
the step's variables, random numbers and containers in memory. Stateless ops
with side effects are listed by name, and so are ops whose side effects depend
on an attribute. Such an attribute must be absent or be set in the node itself.
An attribute that the caller of a function provides is rejected, and so is a
call of a function that the caller names.
"""

import dataclasses
import re
from collections.abc import Callable

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import op_def_registry

from tfplace.errors import ExtractionError, TfplaceError
from tfplace.extraction.nodes import NodeDef, attr_kinds

# Stateful ops without external side effects.
_INSIDE = re.compile(
  "|".join(
    (
      # Variables.
      r"(Temporary)?Variable(V2|Shape)?|(VarHandle|VarIsInitialized)Op",
      r"_(VarHandles|ReadVariables)Op|(Read|Assign(Add|Sub)?)VariableOp",
      r"Resource(Sparse)?Apply\w+|Resource(Gather|Scatter)\w*",
      r"Resource(CountUpTo|StridedSliceAssign|InitializedOp)",
      r"DestroyResourceOp|DisableCopyOnRead|IsResourceHandleRefCounting",
      # Random numbers.
      r"Random(Uniform|UniformInt|StandardNormal|Gamma|Poisson|PoissonV2)",
      r"Random(Shuffle|Crop)|(Parameterized)?TruncatedNormal|Multinomial",
      r"Stateful\w+|Rng(Skip|ReadAndSkip)|NonDeterministicInts",
      r"StatelessRandomGetAlg|\w+CandidateSampler|NegTrain",
      r"SampleDistortedBoundingBox(V2)?|(Anonymous|Delete|Dummy)\w*Generator",
      # Containers in memory.
      r"TensorArray\w*|Stack\w*|(Ordered)?Map[SUPIC]\w+|(Un)?[Ss]tage\w*",
      r"(FIFO|PaddingFIFO|Priority|RandomShuffle|Fake)Queue(V2)?|Queue\w+",
      r"(Anonymous)?(Mutable)?(Dense)?HashTable\w*|LookupTable\w+",
      r"InitializeTableV2|Barrier\w*",
      r"AddSparseToTensorsMap|AddManySparseToTensorsMap",
      r"TakeManySparseFromTensorsMap|(Sparse|Resource)?ConditionalAccumulator",
      r"ResourceAccumulator\w+|Mutex\w*|ConsumeMutexLock",
      # Calls, whose functions are looked through, and checks of numbers.
      r"_?(If|While)|Case|PartitionedCall|_Arg|_Retval|_Device(Arg|Retval)",
      r"Assert|Print|PrintV2|CheckNumerics(V2)?|GuaranteeConst|Empty",
      r"DeepCopy|Timestamp|IsTensorFloat32Enabled|DeviceIndex|CudnnRNN\w*",
      r"_ParallelConcatStart|_ScopedAllocator\w*|SleepOp|SleepIdentityOp",
    )
  )
)
# Stateless ops with side effects, which TensorFlow may even run during import
# to infer shapes. In-memory datasets are included because a string in one can
# hide a whole graph.
_OUTSIDE = re.compile(
  r"ReadFile|MatchingFiles|PyFuncStateless|GenerateVocabRemapping"
  r"|ImmutableConst|InitializeTableFromTextFile|Reader\w+|Copy|CopyHost"
  r"|Debug(Identity|NanCount|NumericSummary)(V\d)?|XlaCustomCall(V2)?"
  r"|XlaLaunchV2|RemoteFusedGraphExecute|TPUPartitionedCall"
  r"|MlirPassthroughOp|\w*Dataset\w*|\w*Iterator\w*|Abort"
)
_STREAMS = frozenset(
  (b"", b"stdout", b"stderr", b"log(info)", b"log(warning)", b"log(error)")
)


def _has_own_descriptor(source: bytes) -> bool:
  return source in (b"", b"local://") or source.startswith(b"bytes://")


def _keeps_optimizers(text: bytes) -> bool:
  """Returns whether a serialized `ConfigProto` names no graph optimizers."""
  try:
    config = config_pb2.ConfigProto.FromString(text)
  except message.DecodeError:
    return False
  options = config.graph_options.rewrite_options
  return not options.custom_optimizers and not options.optimizers


def _is_empty(text: bytes) -> bool:
  return not text


_CALL: dict[str, Callable[[bytes], bool]] = {
  "config": _keeps_optimizers,
  "config_proto": _keeps_optimizers,
  "executor_type": _is_empty,
}
# Op -> string attribute that can cause side effects -> check for harmless
# values.
_BY_ATTRIBUTE: dict[str, dict[str, Callable[[bytes], bool]]] = {
  "PrintV2": {"output_stream": _STREAMS.__contains__},
  "DecodeProtoV2": {"descriptor_source": _has_own_descriptor},
  "EncodeProto": {"descriptor_source": _has_own_descriptor},
  "FixedUnigramCandidateSampler": {"vocab_file": _is_empty},
  "PartitionedCall": _CALL,
  "StatefulPartitionedCall": _CALL,
}
_WHAT = (
  ("Abort", "can end the process"),
  (r"\w*PyFunc\w*", "can run Python code"),
  (
    r"(_|Host)*(Send|Recv)|Rpc\w+|RemoteCall|(Collective|_?Nccl)\w+"
    r"|\w*DataService\w*",
    "can talk to other processes",
  ),
  (
    r"\w*(File|Reader|Save|Restore|Checkpoint|Summary|Dataset|Iterator|Proto"
    r"|Vocab|Debug|Dump|Unigram|Print|Copy)\w*|RecordInput|ImmutableConst"
    r"|Skipgram|LoadAndRemapMatrix",
    "can read or write files",
  ),
)


@dataclasses.dataclass(frozen=True)
class Finding:
  """An op with side effects, its function (or None), and what it does."""

  name: str
  op: str
  function: str | None
  what: str

  def __str__(self) -> str:
    place = f" of function {self.function!r}" if self.function else ""
    return f"op {self.name!r} ({self.op}){place} {self.what}"


def when_run(graph_def: tf.compat.v1.GraphDef) -> Finding | None:
  """Finds the first op with side effects when the graph runs."""
  return first(graph_def, lambda node, _: reaches_out(node))


def when_imported(graph_def: tf.compat.v1.GraphDef) -> Finding | None:
  """Finds the first op that may have side effects during import."""
  return first(
    graph_def, lambda node, _: reaches_out(node) and not _is_stateful(node)
  )


def refuse(
  finding: Finding | None,
  where: str,
  error: type[TfplaceError] = ExtractionError,
) -> None:
  """Raises `error` if there is a finding in the file or step `where`."""
  if finding is not None:
    raise error(
      f"{where}: {finding}; --allow_side_effects (in Python,"
      " allow_side_effects=True) runs it all the same",
      op=finding.name,
    )


def first(
  graph_def: tf.compat.v1.GraphDef, bad: Callable[[NodeDef, str | None], bool]
) -> Finding | None:
  """Finds the first `bad(node, its function)`, even in uncalled functions."""
  bodies = [(None, graph_def.node)]
  bodies += [(f.signature.name, f.node_def) for f in graph_def.library.function]
  for function, nodes in bodies:
    for node in nodes:
      if bad(node, function):
        return Finding(node.name, node.op, function, _what(node.op))
  return None


def reaches_out(node: NodeDef) -> bool:
  """Returns whether the node, without its functions, has side effects."""
  if _calls_unknown_function(node) or _reaches_out_by_attribute(node):
    return True
  if _OUTSIDE.fullmatch(node.op):
    return True
  return _is_stateful(node) and not _INSIDE.fullmatch(node.op)


def _reaches_out_by_attribute(node: NodeDef) -> bool:
  for name, is_inside in _BY_ATTRIBUTE.get(node.op, {}).items():
    if name in node.attr:
      value = node.attr[name]
      if value.WhichOneof("value") != "s" or not is_inside(value.s):
        return True
  return False


def _calls_unknown_function(node: NodeDef) -> bool:
  given = [
    key
    for key, v in node.attr.items()
    if v.WhichOneof("value") == "placeholder"
  ]
  kinds = attr_kinds(node.op) if given else {}
  return any("func" in kinds.get(key, "") for key in given)


def _is_stateful(node: NodeDef) -> bool:
  op_def = op_def_registry.get(node.op)  # None for a library function
  return op_def is not None and op_def.is_stateful


def _what(op: str) -> str:
  for pattern, what in _WHAT:
    if re.fullmatch(pattern, op):
      return what
  return "may act on more than the step's own tensors and variables"

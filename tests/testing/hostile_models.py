"""Hostile SavedModels for tests: what they would do, they do to a canary."""

import pathlib

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.trackable import resource

raw = tf.raw_ops
LOOKUP = {"key_dtype": tf.string, "value_dtype": tf.int64}


def _table():
  return raw.HashTableV2(**LOOKUP)


def read_table(path):
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
  "table": lambda c: read_table(str(c.file)),
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


def export(folder, module, **functions):
  """A SavedModel of TensorFlow 2 that also doubles a number."""
  signature = [tf.TensorSpec([2], tf.float32, "x")]
  module.serve = tf.function(lambda x: x * 2.0, input_signature=signature)
  for name, function in functions.items():
    setattr(module, name, tf.function(function, input_signature=[]))
  tf.saved_model.save(module, str(folder), signatures=module.serve)
  return folder


def of_two(folder, part, deed):
  module = tf.Module()
  module.resource = _Resource(part, deed)
  module.handle = module.resource.resource_handle
  return export(folder, module)


def edited(folder, edit):
  """Edits the main file of a SavedModel."""
  path = folder / "saved_model.pb"
  content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
  edit(content.meta_graphs[0])
  path.write_bytes(content.SerializeToString())
  return folder

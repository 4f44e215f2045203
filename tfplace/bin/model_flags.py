"""Flags of a model: its sizes, its batch, and the code of its classes."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from absl import flags

from tfplace.bin import cli
from tfplace.errors import shown
from tfplace.graph.given_batch import GivenBatch


def define_flags(values: flags.FlagValues) -> None:
  """Adds the flags of a model."""
  text = (
    "Batch of --keras_model: an .npz file with arrays x, y and sample_weight,"
    " or named like the inputs and outputs."
  )
  cli.define(values, "sample", text)
  cli.define_all(
    values,
    {
      "import": "Python modules that define the custom classes and functions of"
      " --keras_model, such as my.module, also in the working directory.",
      "input_shapes": "Shapes of the inputs of --keras_model with the batch"
      " size, such as token_ids:16x128,padding_mask:16x128, or 16x128 for a"
      " single input.",
      "model_sizes": "Additional sizes of a zoo model, such as"
      " length=20,vocabulary=5000.",
    },
    [],
  )


def sizes(values: flags.FlagValues) -> dict[str, int]:
  """Returns the value of `--model_sizes`.

  Raises:
    UsageError: an item is not of the form name=number.
  """
  result = {}
  for item in values.model_sizes:
    key, _, number = item.partition("=")
    if not cli.is_count(number):
      raise cli.UsageError(
        f"--model_sizes: {shown(item)} is not of the form name=number"
      )
    result[key] = int(number)
  return result


def batch(values: flags.FlagValues, kind: str) -> GivenBatch | None:
  """Returns the batch of `--input_shapes` or `--sample`, or None.

  Raises:
    UsageError: both are given, the source is no Keras file, an item is not of
      the form name:16x128, or batch sizes differ.
  """
  items, path = values.input_shapes, values.sample
  if not items and not path:
    return None
  flag = f"--input_shapes={','.join(items)}" if items else f"--sample={path}"
  if kind != "keras_model":
    raise cli.UsageError(
      f"{flag} is for --keras_model; --{kind} says its own shapes"
    )
  if items and path:
    raise cli.UsageError(
      f"{flag} and --sample={path} both describe the batch: give one"
    )
  shapes: dict[str, tuple[int, ...]] = {}
  for item in items:
    name, _, text = item.rpartition(":")
    sizes = text.split("x")
    are_sizes = all(cli.is_count(size) and int(size) for size in sizes)
    if not are_sizes or name in shapes:
      raise cli.UsageError(
        f"--input_shapes: {shown(item)} is not of the form name:16x128, or the"
        " name is there twice"
      )
    shapes[name] = tuple(map(int, sizes))
  batch_sizes = {shape[0] for shape in shapes.values()}
  if len(batch_sizes | {values.batch_size or min(batch_sizes, default=1)}) > 1:
    raise cli.UsageError(
      f"{flag}: the first numbers are the batch size, and they differ"
      + (f" (--batch_size={values.batch_size})" if values.batch_size else "")
    )
  return GivenBatch(shapes, path or "")


@contextlib.contextmanager
def imported(values: flags.FlagValues) -> Iterator[None]:
  """Makes the classes and functions of `--import` known to Keras.

  Raises:
    UsageError: a module is missing, or its import fails.
  """
  modules = values["import"].value
  if not modules:
    yield
    return
  cli.load_tensorflow()
  import keras

  objects: dict[str, Any] = {}
  for name in modules:
    objects |= _defined_in(_import(name))
  with keras.saving.custom_object_scope(objects):
    yield


def _import(name: str) -> ModuleType:
  directory = os.getcwd()
  sys.path.append(directory)
  try:
    return importlib.import_module(name)
  except Exception as error:
    raise cli.UsageError(
      f"--import: module {name!r} cannot be imported:"
      f" {type(error).__name__}: {error}"
    ) from error
  finally:
    sys.path.remove(directory)


def _defined_in(module: ModuleType) -> dict[str, Any]:
  """Returns the public classes and functions that a module defines."""
  return {
    name: value
    for name, value in vars(module).items()
    if not name.startswith("_")
    and callable(value)
    and getattr(value, "__module__", None) == module.__name__
  }

"""What a model of the zoo is, and the registry that builds one by name.

A zoo model is a compiled Keras 3 model with random weights and a source of
random batches of the right shapes: enough to trace, time and train a step. It
brings no data sets and no pre-trained weights.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from tfplace.errors import ExtractionError

Batch = tuple[Any, Any]


@dataclasses.dataclass(frozen=True)
class ZooModel:
  """A model ready to be traced or trained.

  Attributes:
    name: its name in the zoo.
    model: built and compiled, with `jit_compile=False`: XLA would put the
      whole step on one device.
    batch_size: examples per step.
    sizes: every size it was built with, defaults included.
    sampler: what `sample` calls.
  """

  name: str
  model: keras.Model
  batch_size: int
  sizes: Mapping[str, int]
  sampler: Callable[[np.random.Generator], Batch]

  def sample(self, seed: int) -> Batch:
    """A random batch (x, y) as `model.train_on_batch` takes it."""
    return self.sampler(np.random.default_rng(seed))


# Family -> "module:function"; the function takes `batch_size` and its sizes as
# keywords with defaults and returns (model, sampler).
MODELS: Mapping[str, str] = {
  "inception_v3": "tfplace.models.inception:inception_v3",
  "nmt": "tfplace.models.nmt:nmt",
  "gnmt": "tfplace.models.gnmt:gnmt",
  "rnnlm": "tfplace.models.rnnlm:rnnlm",
  "transformer_xl": "tfplace.models.transformer_xl:transformer_xl",
  "nasnet": "tfplace.models.nasnet:nasnet",
  "amoebanet_d": "tfplace.models.amoebanet:amoebanet_d",
  "wavenet": "tfplace.models.wavenet:wavenet",
}

# Name of a published size -> its family and the sizes that make it.
VARIANTS: Mapping[str, tuple[str, Mapping[str, int]]] = {
  **{
    f"{family}_{layers}": (family, {"layers": layers})
    for family in ("gnmt", "rnnlm", "transformer_xl")
    for layers in (2, 4, 8)
  },
  **{
    f"wavenet_{stacks}x{layers}": (
      "wavenet",
      {"stacks": stacks, "layers_per_stack": layers},
    )
    for stacks, layers in ((2, 18), (4, 36))
  },
}


def build(name: str, batch_size: int | None = None, **sizes: int) -> ZooModel:
  """Builds a model of the zoo with random weights.

  Args:
    name: a key of `MODELS` or `VARIANTS`.
    batch_size: examples per step; None is the model's published one.
    **sizes: the model's own sizes, as its function documents them.

  Raises:
    ExtractionError: unknown name or size (lists the choices), or a size that
      is no positive integer.
  """
  if name not in MODELS and name not in VARIANTS:
    choices = ", ".join([*MODELS, *VARIANTS])
    raise ExtractionError(f"unknown model {name!r}: choose from {choices}")
  family, preset = VARIANTS.get(name, (name, {}))
  sizes = {**preset, **sizes}
  module, function = MODELS[family].split(":")
  builder = getattr(importlib.import_module(module), function)
  chosen = {
    key: parameter.default
    for key, parameter in inspect.signature(builder).parameters.items()
  }
  if batch_size is not None:
    sizes["batch_size"] = batch_size
  for key, value in sizes.items():
    if key not in chosen:
      raise ExtractionError(
        f"model {name!r} has no size {key!r}: choose from {', '.join(chosen)}"
      )
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
      raise ExtractionError(
        f"model {name!r}: {key} must be a positive integer, not {value!r}"
      )
  chosen.update(sizes)
  model, sampler = builder(**chosen)
  return ZooModel(name, model, chosen["batch_size"], chosen, sampler)

"""Registry of the zoo models.

A zoo model is a compiled Keras 3 model with random weights and a sampler of
random batches. It is enough to trace, time and train a step. No data sets or
pre-trained weights are included.
"""

import dataclasses
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tfplace.errors import ExtractionError

if TYPE_CHECKING:
  import keras

Batch = tuple[Any, Any]


@dataclasses.dataclass(frozen=True)
class ZooModel:
  """Model that is ready to be traced or trained.

  Attributes:
    name: Name in the zoo.
    model: Built model, compiled with `jit_compile=False` because XLA would put
      the whole step on one device.
    batch_size: Examples per step.
    sizes: All sizes that the model was built with, including defaults.
    sampler: Function behind `sample`.
  """

  name: str
  model: "keras.Model"
  batch_size: int
  sizes: Mapping[str, int]
  sampler: Callable[[np.random.Generator], Batch]

  def sample(self, seed: int) -> Batch:
    """Returns a random batch (x, y) for `model.train_on_batch`."""
    return self.sampler(np.random.default_rng(seed))


# Model name -> "module:function". The function takes `batch_size` and its sizes
# as keywords with defaults and returns (model, sampler).
MODELS: Mapping[str, str] = {
  "inception_v3": "tfplace.models.image_models:inception_v3",
  "nmt": "tfplace.models.translator:nmt",
  "gnmt": "tfplace.models.translator:gnmt",
  "rnnlm": "tfplace.models.lstm:rnnlm",
  "transformer_xl": "tfplace.models.transformer_xl:transformer_xl",
  "nasnet": "tfplace.models.image_models:nasnet",
  "amoebanet_d": "tfplace.models.image_models:amoebanet_d",
  "wavenet": "tfplace.models.wavenet:wavenet",
}

# Name of a published configuration -> the model and the sizes that define it.
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
  "amoebanet": ("amoebanet_d", {}),
}


def check_name(name: str) -> None:
  """Raises ExtractionError for an unknown model; lists the choices."""
  choices = [*MODELS, *VARIANTS]
  if name not in choices:
    raise ExtractionError(
      f"unknown model {name!r}: choose from {', '.join(choices)}"
    )


def build(
  name: str, /, batch_size: int | None = None, **sizes: int
) -> ZooModel:
  """Builds a zoo model with random weights.

  Args:
    name: A key of `MODELS` or `VARIANTS`.
    batch_size: Examples per step. None selects the default of the model.
    **sizes: Sizes of the model, as documented by its function.

  Raises:
    ExtractionError: The name or a size is unknown (the message lists the
      choices), or a size is not a positive integer.
  """
  check_name(name)
  if batch_size is not None:
    sizes["batch_size"] = batch_size
  for key, value in sizes.items():
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
      raise ExtractionError(
        f"model {name!r}: {key} must be a positive integer, not {value!r}"
      )
  family, preset = VARIANTS.get(name, (name, {}))
  builder = pkgutil.resolve_name(MODELS[family])
  chosen = {
    key: parameter.default
    for key, parameter in inspect.signature(builder).parameters.items()
  }
  for key in sizes:
    if key not in chosen:
      raise ExtractionError(
        f"model {name!r} has no size {key!r}: choose from {', '.join(chosen)}"
      )
  chosen.update({**preset, **sizes})
  model, sampler = builder(**chosen)
  return ZooModel(name, model, chosen["batch_size"], chosen, sampler)

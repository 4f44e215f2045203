"""The 24 models, by name, without loading TensorFlow.

Fourteen are those of the first trial by a new user; the others are trained as
often. Weights are random and sizes small, so that a step takes seconds on a
CPU; layers, ops, losses and the way of writing them are what counts.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_FOLDER = "benchmarks.user_models"


@dataclasses.dataclass(frozen=True)
class Case:
  """A model and the data of a few steps.

  Attributes:
    model: compiled, as a user would pass it to `fit`.
    data: nested arrays that `tf.data.Dataset.from_tensor_slices` takes: `x`,
      `(x, y)`, `(x, y, sample_weight)` or what the model's own step takes.
    batch_size: examples of a step.
  """

  model: Any
  data: Any
  batch_size: int


@dataclasses.dataclass(frozen=True)
class UserModel:
  """A model of the table.

  Attributes:
    module: module that has a function of the model's name; it returns a `Case`.
    about: kind and sizes, for tables.
    imports: modules whose classes its Keras file needs.
  """

  module: str
  about: str
  imports: tuple[str, ...] = ()

  def load(self, name: str) -> Case:
    """Builds the model of that name."""
    return getattr(importlib.import_module(self.module), name)()


def _hub(about: str) -> UserModel:
  return UserModel(f"{_FOLDER}.hub_models", about, ("keras_hub",))


def _own(module: str, about: str, has_classes: bool = False) -> UserModel:
  full = f"{_FOLDER}.{module}"
  return UserModel(full, about, (full,) if has_classes else ())


FOURTEEN: Mapping[str, UserModel] = {
  "bert": _hub("keras-hub BertTextClassifier, 12 layers of 128, 16 x 128"),
  "gpt2": _hub("keras-hub GPT2CausalLM, 6 layers of 128, 8 x 64"),
  "t5": _hub("keras-hub T5Backbone with a head, 2 + 2 layers of 128, 8 x 64"),
  "whisper": _hub("keras-hub WhisperBackbone with a head, 2 + 2 layers of 128"),
  "mixtral": _hub("keras-hub MixtralCausalLM, 2 layers of 128, 4 experts"),
  "siamese": _own("own_steps", "three ResNet-50s, triplet loss, 8 x 64", True),
  "gan": _own("own_steps", "DCGAN with two optimizers, 16 x 64 x 64", True),
  "vae": _own("own_steps", "convolutional VAE, 64 x 28 x 28", True),
  "seq2seq": _own("sequences", "LSTM encoder and decoder, lengths left open"),
  "pointnet": _own("images", "PointNet, 16 x 512 points", True),
  "graph_convolution": _own(
    "structured", "node classification, 1,000 nodes", True
  ),
  "mobilenet_v3": _own("images", "MobileNetV3Small, 16 x 96 x 96"),
  "wide_and_deep": _own(
    "structured", "Wide and Deep with StringLookup, 256 rows"
  ),
  "ctc": _own("sequences", "OCR: convolutions, BiLSTMs, add_loss", True),
}
TEN_MORE: Mapping[str, UserModel] = {
  "efficientnet": _own("images", "augmentation and EfficientNetB0, 8 x 96"),
  "vit": _own("images", "ViT, 4 layers of 64, 32 x 72 x 72", True),
  "unet": _own("images", "U-Net of separable convolutions, 8 x 96 x 96"),
  "distilbert": _hub("keras-hub DistilBertTextClassifier, 4 layers of 256"),
  "llama": _hub("keras-hub LlamaCausalLM, 4 layers of 128, 8 x 64"),
  "audio": _own("sequences", "residual Conv1Ds, 16 x 4,000 values"),
  "dlrm": _own("structured", "subclassed DLRM, 26 embeddings, 512 rows", True),
  "tab_transformer": _own("structured", "TabTransformer, 256 rows", True),
  "diffusion": _own("own_steps", "DDIM with a moving average, 16 x 32", True),
  "bilstm": _own("sequences", "sentiment by two BiLSTMs, length left open"),
}
MODELS: Mapping[str, UserModel] = {**FOURTEEN, **TEN_MORE}


def models_of(module: str) -> Mapping[str, UserModel]:
  """Returns `MODELS` of a module.

  Raises:
    ImportError: the module cannot be imported.
    AttributeError: it has no `MODELS`.
  """
  loaded: ModuleType = importlib.import_module(module)
  return loaded.MODELS

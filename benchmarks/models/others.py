"""Models of other people for `run_exactness.py`, small but complete.

Their layers, ops and losses are what counts there, not their sizes.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

BATCH = 8
_CLASSES, _SIDE = 3, 32
_LENGTH, _LENGTHS = 12, {"Moonshine": 2400}
_SIDES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
APPLICATIONS = (
  "ConvNeXtTiny",
  "DenseNet121",
  "EfficientNetB0",
  "EfficientNetV2B0",
  "InceptionResNetV2",
  "InceptionV3",
  "MobileNet",
  "MobileNetV2",
  "MobileNetV3Large",
  "MobileNetV3Small",
  "NASNetMobile",
  "ResNet101",
  "ResNet50",
  "ResNet50V2",
  "VGG16",
  "VGG19",
  "Xception",
)
# Values of the arguments of keras-hub's backbones, by the name of the argument.
_SIZES: dict[str, Any] = {
  "vocabulary_size": 97,
  "vocab_size": 97,
  "num_layers": 2,
  "encoder_num_layers": 2,
  "decoder_num_layers": 2,
  "num_heads": 2,
  "encoder_num_heads": 2,
  "decoder_num_heads": 2,
  "num_attention_heads": 2,
  "num_query_heads": 2,
  "num_key_value_heads": 1,
  "embedding_dim": 16,
  "hidden_dim": 16,
  "intermediate_dim": 32,
  "moe_intermediate_dim": 32,
  "shared_expert_intermediate_dim": 32,
  "mlp_dim": 32,
  "filter_dim": 16,
  "head_dim": 8,
  "head_size": 8,
  "num_experts": 4,
  "max_sequence_length": 16,
  "image_shape": (_SIDE, _SIDE, 3),
  "image_size": _SIDE,
  "patch_size": 8,
}
# Arguments of one backbone that differ, or that no other one has.
_OWN_SIZES: dict[str, dict[str, Any]] = {
  "DINOV2": {"position_embedding_shape": (_SIDE, _SIDE, 3)},
  "DenseNet": {"stackwise_num_repeats": [2, 2]},
  "MiT": {
    "layerwise_depths": [1, 1],
    "layerwise_num_heads": [1, 2],
    "layerwise_sr_ratios": [2, 1],
    "max_drop_path_rate": 0.1,
    "layerwise_patch_sizes": [7, 3],
    "layerwise_strides": [4, 2],
    "hidden_dims": [8, 16],
  },
  "QwenMoe": {"top_k": 2},
  "Qwen3Moe": {"top_k": 2},
  "ResNet": {
    "input_conv_filters": [8],
    "input_conv_kernel_sizes": [3],
    "stackwise_num_filters": [64, 64],
    "stackwise_num_blocks": [1, 1],
    "stackwise_num_strides": [1, 2],
    "block_type": "bottleneck_block",
  },
  "SwinTransformer": {
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "window_size": 4,
    "patch_size": 2,
  },
  "VGG": {"stackwise_num_repeats": [1, 2], "stackwise_num_filters": [8, 16]},
  "Whisper": {"num_mels": 8, "max_decoder_sequence_length": 16},
}
BACKBONES = (
  "Albert",
  "Bart",
  "Bert",
  "Bloom",
  "DebertaV3",
  "DeiT",
  "DenseNet",
  "DINOV2",
  "DistilBert",
  "Electra",
  "ESM",
  "FNet",
  "Falcon",
  "GPT2",
  "GPTNeoX",
  "Gemma",
  "Gemma3",
  "GptOss",
  "Llama",
  "Llama3",
  "MiT",
  "Mistral",
  "Mixtral",
  "Moonshine",
  "OPT",
  "Phi3",
  "Qwen",
  "Qwen3",
  "Qwen3Moe",
  "QwenMoe",
  "ResNet",
  "Roberta",
  "RoformerV2",
  "SwinTransformer",
  "T5",
  "VGG",
  "ViT",
  "Whisper",
  "XLMRoberta",
  "XLNet",
)


@dataclasses.dataclass(frozen=True)
class Foreign:
  """A compiled model and one batch of it.

  Attributes:
    model: what is trained.
    sample: `(x, y)`.
    has_batch_statistics: whether BatchNormalization must be allowed to compute
      its statistics for each microbatch.
  """

  model: keras.Model
  sample: tuple[Any, Any]

  @property
  def has_batch_statistics(self) -> bool:
    """Returns whether a layer computes statistics over the batch."""
    return any(
      isinstance(layer, layers.BatchNormalization)
      for layer in self.model._flatten_layers()
    )


def application(name: str) -> Foreign:
  """A model of `keras.applications` for small images."""
  side = _SIDES.get(name, _SIDE)
  model = getattr(keras.applications, name)(
    weights=None, input_shape=(side, side, 3), classes=_CLASSES
  )
  return _compiled(model)


def backbone(name: str) -> Foreign:
  """A backbone of keras-hub with a head that classifies.

  Raises:
    ImportError: keras-hub is not installed.
  """
  import keras_hub

  kind = getattr(keras_hub.models, f"{name}Backbone")
  sizes = _SIZES | _OWN_SIZES.get(name, {})
  known = inspect.signature(kind.__init__).parameters
  needed = {k: v for k, v in sizes.items() if k in known}
  body = kind(**needed)
  output = _sequence(body.output)
  if len(output.shape) > 2:
    axes = tuple(range(1, len(output.shape) - 1))
    output = layers.Lambda(lambda x: keras.ops.mean(x, axis=axes))(output)
  scores = layers.Dense(_CLASSES, "softmax", name="scores")(output)
  model = keras.Model(body.input, scores)
  return _compiled(model, _LENGTHS.get(name, _LENGTH))


def _sequence(output: Any) -> Any:
  """The output that a head would read: the decoder's, if there are several."""
  if not isinstance(output, Mapping):
    return output
  for key in ("decoder_sequence_output", "sequence_output"):
    if key in output:
      return output[key]
  return list(output.values())[-1]


def _compiled(model: keras.Model, length: int = _LENGTH) -> Foreign:
  model.compile(
    "adam",
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
    jit_compile=False,
  )
  return with_data(model, length)


def with_data(model: keras.Model, length: int = _LENGTH) -> Foreign:
  """A compiled classifier with a batch of random numbers.

  Args:
    model: what is trained.
    length: stands for every dimension that the model leaves open.
  """
  rng = np.random.default_rng(0)

  def data(tensor: Any) -> np.ndarray:
    shape = (BATCH, *(d or length for d in tensor.shape[1:]))
    if "padding_mask" in tensor.name:
      return np.ones(shape, tensor.dtype)
    if "int" in tensor.dtype:
      most = 2 if "segment" in tensor.name else _CLASSES
      return rng.integers(0, most, shape).astype(tensor.dtype)
    return rng.random(shape, np.float32)

  x = keras.tree.map_structure(data, model.input)
  targets = (BATCH, *model.output.shape[1:-1])
  y = rng.integers(0, _CLASSES, [d or length for d in targets])
  return Foreign(model, (x, y))


def builders() -> dict[str, Callable[[], Foreign]]:
  """Name -> what builds the model."""
  found: dict[str, Callable[[], Foreign]] = {}
  for name in APPLICATIONS:
    found[f"applications/{name}"] = lambda name=name: application(name)
  for name in BACKBONES:
    found[f"keras_hub/{name}"] = lambda name=name: backbone(name)
  return found

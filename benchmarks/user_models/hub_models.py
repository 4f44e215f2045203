"""Models of keras-hub with random weights and no preprocessor."""

from typing import Any

import keras
import keras_hub
import numpy as np

from benchmarks.user_models.registry import Case

_STEPS = 2


def bert() -> Case:
  """A classifier of texts."""
  backbone = keras_hub.models.BertBackbone(
    vocabulary_size=30522,
    num_layers=12,
    num_heads=2,
    hidden_dim=128,
    intermediate_dim=512,
    max_sequence_length=128,
  )
  model = keras_hub.models.BertTextClassifier(
    backbone, num_classes=2, preprocessor=None
  )
  model.compile(
    optimizer=keras.optimizers.AdamW(5e-5),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
  )
  x = _tokens(16, 128, 30522)
  x["segment_ids"] = np.zeros_like(x["token_ids"])
  return Case(model, (x, _classes(16, 2)), 16)


def distilbert() -> Case:
  """A smaller classifier of texts."""
  backbone = keras_hub.models.DistilBertBackbone(
    vocabulary_size=30522,
    num_layers=4,
    num_heads=4,
    hidden_dim=256,
    intermediate_dim=1024,
    max_sequence_length=128,
  )
  model = keras_hub.models.DistilBertTextClassifier(
    backbone, num_classes=4, preprocessor=None
  )
  model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
  )
  return Case(model, (_tokens(16, 64, 30522), _classes(16, 4)), 16)


def gpt2() -> Case:
  """A language model with weights of examples, as its preprocessor gives."""
  backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=50257,
    num_layers=6,
    num_heads=2,
    hidden_dim=128,
    intermediate_dim=512,
    max_sequence_length=128,
  )
  model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
  return _language_model(model, 50257)


def llama() -> Case:
  """A language model with grouped queries and rotary positions."""
  backbone = keras_hub.models.LlamaBackbone(
    vocabulary_size=32000,
    num_layers=4,
    num_query_heads=4,
    num_key_value_heads=2,
    hidden_dim=128,
    intermediate_dim=384,
  )
  model = keras_hub.models.LlamaCausalLM(backbone, preprocessor=None)
  return _language_model(model, 32000)


def mixtral() -> Case:
  """A language model that routes each token to two of four experts."""
  backbone = keras_hub.models.MixtralBackbone(
    vocabulary_size=32000,
    num_layers=2,
    num_query_heads=4,
    num_key_value_heads=2,
    hidden_dim=128,
    intermediate_dim=256,
    num_experts=4,
    top_k=2,
  )
  model = keras_hub.models.MixtralCausalLM(backbone, preprocessor=None)
  return _language_model(model, 32000)


def t5() -> Case:
  """Encoder and decoder; the head is the transposed embedding."""
  backbone = keras_hub.models.T5Backbone(
    vocabulary_size=32128,
    num_layers=2,
    num_heads=4,
    hidden_dim=128,
    intermediate_dim=256,
  )
  hidden = backbone(backbone.input)["decoder_sequence_output"]
  logits = backbone.token_embedding(hidden, reverse=True)
  model = keras.Model(backbone.input, logits, name="t5")
  _compile_language_model(model)
  x = {
    **_tokens(8, 64, 32128, "encoder_"),
    **_tokens(8, 64, 32128, "decoder_"),
  }
  return Case(model, (x, _next(x["decoder_token_ids"])), 8)


def whisper() -> Case:
  """Encoder of speech, decoder of text; the transposed embedding as head."""
  backbone = keras_hub.models.WhisperBackbone(
    vocabulary_size=51865,
    num_layers=2,
    num_heads=4,
    hidden_dim=128,
    intermediate_dim=512,
    max_encoder_sequence_length=200,
    max_decoder_sequence_length=32,
  )
  hidden = backbone(backbone.input)["decoder_sequence_output"]
  logits = backbone.token_embedding(hidden, reverse=True)
  model = keras.Model(backbone.input, logits, name="whisper")
  _compile_language_model(model)
  rng = np.random.default_rng(0)
  x = _tokens(8, 32, 51865, "decoder_")
  sound = rng.normal(size=(_STEPS * 8, 200, 80)).astype("float32")
  x["encoder_features"] = sound
  return Case(model, (x, _next(x["decoder_token_ids"])), 8)


def _language_model(model: keras.Model, vocabulary: int) -> Case:
  _compile_language_model(model)
  x = _tokens(8, 64, vocabulary)
  weights = x["padding_mask"].astype("float32")
  return Case(model, (x, _next(x["token_ids"]), weights), 8)


def _compile_language_model(model: keras.Model) -> None:
  model.compile(
    optimizer=keras.optimizers.Adam(5e-5),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
  )


def _tokens(
  batch_size: int, length: int, vocabulary: int, prefix: str = ""
) -> dict[str, Any]:
  """Returns token ids, and a mask of which the last eighth is padding."""
  rng = np.random.default_rng(0)
  shape = (_STEPS * batch_size, length)
  mask = np.ones(shape, "int32")
  mask[:, length - length // 8 :] = 0
  return {
    f"{prefix}token_ids": rng.integers(0, vocabulary, shape).astype("int32"),
    f"{prefix}padding_mask": mask,
  }


def _next(tokens: np.ndarray) -> np.ndarray:
  return np.roll(tokens, -1, axis=1)


def _classes(batch_size: int, count: int) -> np.ndarray:
  rng = np.random.default_rng(1)
  return rng.integers(0, count, _STEPS * batch_size).astype("int32")

"""The NMT model of the placement papers: two layers each way, attention.

See `translator` for how it is unrolled and how its ops are named.
"""

import keras

from tfplace.models.translator import Translator, translation_model
from tfplace.models.words import Sampler


def nmt(
  batch_size: int = 64,
  layers: int = 2,
  units: int = 1024,
  vocabulary: int = 30000,
  length: int = 40,
) -> tuple[keras.Model, Sampler]:
  """A 2-layer NMT model in the manner of Wu et al., "Google's Neural Machine
  Translation System" (arXiv 1609.08144).

  From the paper: 1024 units, attention asked by the bottom decoder layer and
  heard by all, residual connections from the third layer on. Not from it: one
  direction in the encoder, a vocabulary of 30,000 words (Bahdanau et al.,
  arXiv 1409.0473), length 40 and Adam of 1e-3; batch 64 and length 40 are
  chosen, about what placement papers ran.

  Args:
    batch_size: sentence pairs per step.
    layers: LSTM layers of the encoder, and of the decoder.
    units: units per layer.
    vocabulary: words of each language.
    length: words of a source sentence, and of a target sentence.
  """
  translator = Translator(layers, units, vocabulary, name="translator")
  optimizer = keras.optimizers.Adam(1e-3)
  return translation_model("nmt", translator, optimizer, batch_size, length)

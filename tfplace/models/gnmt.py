"""Google's neural machine translation system, unrolled: 2, 4 or 8 layers.

See `translator` for how it is unrolled and how its ops are named. The ops of
the bottom encoder layer's backward direction are under `encode_back_7/
encoder_layer_0_backward`, 7 being the word's position.
"""

import keras

from tfplace.errors import ExtractionError
from tfplace.models.translator import Translator, translation_model
from tfplace.models.words import Sampler


def gnmt(
  batch_size: int = 128,
  layers: int = 8,
  units: int = 1024,
  vocabulary: int = 32000,
  length: int = 64,
) -> tuple[keras.Model, Sampler]:
  """GNMT of Wu et al., "Google's Neural Machine Translation System" (arXiv
  1609.08144).

  From the paper: 8 layers of 1024 units, the bottom one of the encoder in two
  directions, residual connections from the third layer on, attention asked by
  the bottom decoder layer and heard by all, 32,000 word pieces, batches of 128
  sentence pairs, Adam of 2e-4. Not from it: the decoder starts from the
  encoder's last states, every layer of it hears the attention of its own step
  (the bottom one, of the step before), nothing is dropped out, and gradients
  are not clipped (Keras would send them all through one op). The paper gives
  no one length; 64 is chosen so that 8 layers make over 50,000 ops, as in the
  placement papers.

  Args:
    batch_size: sentence pairs per step.
    layers: LSTM layers of the encoder, and of the decoder.
    units: units per layer and direction.
    vocabulary: word pieces of each language.
    length: word pieces of a source sentence, and of a target sentence.

  Raises:
    ExtractionError: fewer than 2 layers.
  """
  if layers < 2:
    raise ExtractionError(
      f"model 'gnmt': layers must be at least 2, not {layers}"
    )
  translator = Translator(
    layers, units, vocabulary, bidirectional=True, name="translator"
  )
  optimizer = keras.optimizers.Adam(2e-4)
  return translation_model("gnmt", translator, optimizer, batch_size, length)

"""Keras's layers: each of a kind, in one model, with a batch for it."""

import keras
import numpy as np
from keras import layers

from tests.testing.layer_cases.register import case, chain, floats, ints


@case
def normalizations():
  model = chain(
    (6, 6, 4),
    layers.Conv2D(8, 3, padding="same"),
    layers.BatchNormalization(),
    layers.GroupNormalization(4),
    layers.LayerNormalization(),
    layers.RMSNormalization(),
    layers.UnitNormalization(),
    layers.SpectralNormalization(layers.Conv2D(4, 3)),
    layers.GlobalAveragePooling2D(),
    layers.Dense(3, kernel_constraint="max_norm", bias_regularizer="l1"),
  )
  return model, (floats(8, 6, 6, 4), floats(8, 3))


@case
def noises():
  model = chain(
    (6, 8),
    layers.Dropout(0.3),
    layers.SpatialDropout1D(0.2),
    layers.GaussianNoise(0.1),
    layers.Dense(8, activation="selu"),
    layers.AlphaDropout(0.2),
    layers.GaussianDropout(0.2),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(8, 6, 8), floats(8, 3))


@case
def masked_recurrences():
  model = chain(
    (7,),
    layers.Embedding(30, 6, mask_zero=True),
    layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
    layers.Bidirectional(layers.GRU(3, dropout=0.2, return_sequences=True)),
    layers.LSTM(4, recurrent_dropout=0.2, return_sequences=True),
    layers.TimeDistributed(layers.Dense(4)),
    layers.SimpleRNN(5),
    layers.Dense(3),
    dtype="int32",
  )
  return model, (ints(30, 8, 7), floats(8, 3))


@case
def stateful_and_unrolled_recurrences():
  inputs = keras.Input(batch_shape=(8, 5, 4))
  cells = [layers.LSTMCell(4), layers.GRUCell(3, reset_after=False)]
  x = layers.LSTM(4, stateful=True, return_sequences=True)(inputs)
  x = layers.RNN(cells, return_sequences=True)(x)
  x, h, c = layers.LSTM(3, unroll=True, return_state=True)(x)
  x = layers.Dense(3)(layers.Concatenate()([x, h, c]))
  return keras.Model(inputs, x), (floats(8, 5, 4), floats(8, 3))


@case
def convolutional_recurrence():
  model = chain(
    (3, 6, 6, 2),
    layers.ConvLSTM2D(3, 3, return_sequences=True),
    layers.Conv3D(2, 2),
    layers.MaxPooling3D((1, 2, 2)),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(4, 3, 6, 6, 2), floats(4, 3))


@case
def attentions():
  inputs = keras.Input((6, 8))
  x = layers.MultiHeadAttention(2, 4, dropout=0.1)(inputs, inputs)
  x = layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)
  x = layers.Attention(use_scale=True)([x, inputs])
  x = layers.AdditiveAttention()([x, inputs])
  x = layers.EinsumDense("abc,cd->abd", (6, 5), bias_axes="d")(x)
  x = layers.Dense(3)(layers.GlobalMaxPooling1D()(x))
  return keras.Model(inputs, x), (floats(8, 6, 8), floats(8, 3))


@case
def convolutions():
  model = chain(
    (12, 12, 4),
    layers.Conv2D(8, 3, groups=2, padding="same"),
    layers.DepthwiseConv2D(3, padding="same"),
    layers.PReLU(shared_axes=[1, 2]),
    layers.SeparableConv2D(6, 3, strides=2, padding="same"),
    layers.Conv2DTranspose(5, 3, strides=2, padding="same"),
    layers.AveragePooling2D(2),
    layers.UpSampling2D(interpolation="bilinear"),
    layers.ZeroPadding2D(1),
    layers.Cropping2D(2),
    layers.Permute((2, 1, 3)),
    layers.MaxPooling2D(),
    layers.Reshape((-1, 5)),
    layers.Conv1D(6, 2, dilation_rate=2, padding="causal"),
    layers.SeparableConv1D(4, 2),
    layers.Conv1DTranspose(3, 2),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(4, 12, 12, 4), floats(4, 3))


@case
def augmentation():
  normalization = layers.Normalization()
  normalization.adapt(floats(32, 10, 10, 3))
  model = chain(
    (10, 10, 3),
    normalization,
    layers.Rescaling(0.5),
    layers.RandomFlip(),
    layers.RandomRotation(0.1),
    layers.RandomZoom(0.1),
    layers.RandomTranslation(0.1, 0.1),
    layers.RandomContrast(0.1),
    layers.RandomBrightness(0.1, value_range=(-1, 1)),
    layers.RandomCrop(8, 8),
    layers.Resizing(6, 6),
    layers.Conv2D(3, 3, activation="relu"),
    layers.Flatten(),
    layers.Dense(3),
  )
  return model, (floats(4, 10, 10, 3), floats(4, 3))


@case
def text_and_tables():
  words = keras.Input((), dtype="string", name="words")
  numbers = keras.Input((1,), name="numbers")
  text = layers.TextVectorization(output_sequence_length=4)
  text.adapt(["a b c", "c d e f", "a a"])
  ids = layers.StringLookup(vocabulary=["a b", "c"])(words)
  x = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(text(words)))
  y = layers.Embedding(4, 4)(ids)
  bins = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(numbers)
  z = layers.CategoryEncoding(4, output_mode="one_hot")(bins)
  h = layers.Embedding(7, 4)(layers.Hashing(7)(words))
  x = layers.Concatenate()([x, y, z, h])
  model = keras.Model([words, numbers], layers.Dense(3)(x))
  texts = np.array(["a b", "c", "d e", "f"], dtype=object)
  return model, ([texts, floats(4, 1)], floats(4, 3))


@case
def lambdas_and_operations():
  inputs = keras.Input((6,))
  x = layers.Lambda(lambda t: t * 2.0)(inputs)
  x = keras.ops.where(x > 0, x, 0.1 * x)
  parts = keras.ops.split(x, 2, axis=-1)
  x = layers.Dot(axes=-1)([layers.Dense(4)(part) for part in parts])
  x = layers.ActivityRegularization(l2=0.01)(x)
  x = layers.Dense(4, activity_regularizer="l1")(x)
  return (
    keras.Model(inputs, layers.Softmax()(x)),
    (
      floats(8, 6),
      ints(4, 8),
    ),
    {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
  )

"""Step variants of a Keras model: microbatches, recomputation, XLA units."""

"""The training or inference step of a Keras 3 model, traced."""

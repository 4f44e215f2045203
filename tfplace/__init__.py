"""tfplace: device placement for TensorFlow."""

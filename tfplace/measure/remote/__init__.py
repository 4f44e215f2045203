"""TensorFlow workers on other hosts."""

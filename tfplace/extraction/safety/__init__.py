"""Files of strangers: what is checked before TensorFlow reads them."""

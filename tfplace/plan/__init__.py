"""Planning from a source and a cluster, used by commands and Keras."""

"""From a source and a cluster to a plan: what commands and Keras call."""

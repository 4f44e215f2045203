"""A training step in microbatches that computes what the whole step does."""

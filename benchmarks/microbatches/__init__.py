"""Steps in microbatches."""

import os

# Those need Keras 2 in their process: `test_training_process` runs them.
collect_ignore = (
  [] if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else ["keras2"]
)

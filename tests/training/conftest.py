import os
import pathlib
import sys

# For `policies_testing` and `rl_testing`, wherever pytest is started.
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "learned")]

# Those need Keras 2 in their process: `test_training_process` runs them.
collect_ignore = (
  [] if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else ["training"]
)

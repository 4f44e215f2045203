import pathlib
import sys

# For `policies_testing`, wherever pytest is started.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

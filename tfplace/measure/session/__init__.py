"""Code and messages of measuring processes."""

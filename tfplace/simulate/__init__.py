"""The exact simulator of a placed step."""

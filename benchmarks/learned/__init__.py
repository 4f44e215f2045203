"""Training and comparing policies."""

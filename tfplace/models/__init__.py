"""Real models of the field."""

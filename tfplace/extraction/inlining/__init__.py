"""Function calls of a traced step, inlined into one flat graph."""

"""GDP: a graph network and a segment-recurrent placer, in one pass."""

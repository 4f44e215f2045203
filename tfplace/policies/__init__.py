"""Networks of the learned placers, their features, and exported policies."""

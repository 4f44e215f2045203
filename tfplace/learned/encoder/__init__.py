"""Graph encoder of `gdp` and `ordered`: features, network and training."""

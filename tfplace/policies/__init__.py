"""The networks of the learned placers."""

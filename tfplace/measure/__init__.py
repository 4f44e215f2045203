"""Running placed graphs on real devices."""

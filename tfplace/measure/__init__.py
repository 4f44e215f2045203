"""Execution and timing of placed graphs on real devices."""

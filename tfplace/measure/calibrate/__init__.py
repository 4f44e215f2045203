"""Costs of ops and messages on real devices, fitted to measurements."""

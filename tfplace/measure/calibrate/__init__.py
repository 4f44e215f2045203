"""What ops and messages cost on real devices, fitted to runs."""

"""Checks of tfplace-doctor: this host, its libraries, caches and a step."""

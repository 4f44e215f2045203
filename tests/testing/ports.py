"""Checks which ports accept connections."""

import socket


def reaches(host, port):
  try:
    with socket.create_connection((host, port), timeout=0.5):
      return True
  except OSError:
    return False

"""Builds the package; pyproject.toml says what it is."""

import setuptools

setuptools.setup()

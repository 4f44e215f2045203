"""Package metadata; see README.md for what tfplace is."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent

COMMANDS = (
  *("extract", "estimate", "place", "simulate", "explain", "measure", "train"),
  *("worker", "doctor"),
)

REPORT = ["bokeh>=3.7,<4"]
DASK = ["distributed>=2025.1,<2027"]

# The version's one place; not imported, for the package may lack NumPy here.
VERSION = re.findall(
  r'^__version__ = "(.+)"$',
  (ROOT / "tfplace" / "__init__.py").read_text(encoding="utf-8"),
  re.MULTILINE,
)[0]

setuptools.setup(
  name="tfplace",
  version=VERSION,
  description="Device placement for TensorFlow: which op goes where.",
  long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.10,<3.14",
  packages=setuptools.find_packages(include=["tfplace", "tfplace.*"]),
  package_data={
    "tfplace": [
      "py.typed",
      "cost/kernels/*.json",
      "extraction/*.json",
      "report/page/*.html",
      "learned/pretrained/**",
    ]
  },
  install_requires=[
    "tensorflow>=2.21,<2.22",
    "keras>=3.12,<4",
    "numpy>=2.2,<2.4",
    "numba>=0.61.2,<0.69",
    "scipy>=1.15,<2",
    "pymetis>=2025.2,<2026",
    # Its wheels ship libscotch, for Linux only.
    'pyscotch>=7.0.5,<8; platform_system == "Linux"',
    "absl-py>=2.5,<3",
    "packaging>=24",
    "rich>=15,<16",
    "matplotlib>=3.10,<4",
  ],
  extras_require={
    "train": [
      'tf-agents==0.19.0; python_version < "3.12"',
      'tensorflow-gnn==1.0.3; python_version < "3.12"',
      'tf-keras>=2.21,<2.22; python_version < "3.12"',
      'tensorboard>=2.21,<2.22; python_version < "3.12"',
    ],
    "report": REPORT,
    # Searches and training samples on the workers of a Dask cluster.
    "dask": DASK,
    # Fitting kernel times to measured kernels (benchmarks/gpu).
    "fit": ["lightgbm>=4.6,<5"],
    # The documents as a site: `mkdocs build --strict`.
    "docs": [
      "mkdocs>=1.6,<2",
      "mkdocstrings[python]>=1,<2",
      "ruff>=0.17,<0.18",
    ],
    "test": [
      *REPORT,
      *DASK,
      # A notebook of examples/ fine-tunes its BERT.
      'keras-hub>=0.32,<1; python_version >= "3.11"',
      "pytest>=9,<10",
      "pytest-timeout>=2.4,<3",
      "pytest-xdist>=3.8,<4",
      "hypothesis>=6.150,<7",
    ],
  },
  entry_points={
    "console_scripts": [
      f"tfplace-{name} = tfplace.bin.{name}:run" for name in COMMANDS
    ]
  },
)

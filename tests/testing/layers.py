"""Imports that are allowed between packages."""

# Modules that every folder may import.
ANYWHERE = {"errors", "lazy", "version"}
# Folder -> folders of tfplace that it imports. A permission that nobody uses is
# refused, too.
ALLOWED = {
  "graph": set(),
  "hardware": {"graph"},
  "formats": {"graph"},
  "extraction": {"graph", "formats"},
  "variants": {"graph", "extraction"},
  "cost": {"graph", "hardware", "extraction", "variants", "simulate"},
  "simulate": {"graph"},
  "bounds": {"graph", "simulate"},
  "placers": {"graph", "simulate", "bounds"},
  "learned": {"graph", "formats", "extraction", "simulate", "placers"},
  "training": {"graph", "formats", "simulate", "placers", "learned"},
  "models": set(),
  "measure": {
    "graph",
    "hardware",
    "formats",
    "extraction",
    "variants",
    "cost",
    "simulate",
  },
  "plan": {
    "graph",
    "hardware",
    "formats",
    "extraction",
    "variants",
    "cost",
    "simulate",
    "bounds",
    "placers",
    "models",
    "measure",
  },
  "keras": {
    "graph",
    "formats",
    "extraction",
    "variants",
    "cost",
    "simulate",
    "plan",
  },
  "report": {"graph", "formats", "cost", "simulate", "plan"},
}

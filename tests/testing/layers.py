"""Imports that are allowed between packages."""

# Folder -> folders of tfplace that it imports, besides `errors` and `lazy`: the
# table of docs/architecture.md. A permission that nobody uses is refused, too.
ALLOWED = {
  "core": set(),
  "formats": {"core"},
  "extraction": {"core", "formats"},
  "cost": {"core", "extraction", "simulate"},
  "simulate": {"core"},
  "bounds": {"core", "simulate"},
  "placers": {"core", "simulate", "bounds"},
  "learned": {"core", "formats", "extraction", "simulate", "placers"},
  "training": {"core", "formats", "learned", "placers", "simulate"},
  "models": set(),
  "plan": {
    "core",
    "formats",
    "extraction",
    "cost",
    "bounds",
    "placers",
    "models",
    "measure",
    "simulate",
  },
  "measure": {"core", "formats", "extraction", "cost", "simulate"},
  "keras": {"core", "cost", "formats", "extraction", "plan", "simulate"},
  "report": {"core", "cost", "formats", "plan", "simulate"},
}

"""Imports that are allowed between packages."""

# Modules that every folder may import.
ANYWHERE = {"errors", "lazy", "version"}
# What a traced step goes through.
_LOW = {"graph", "formats", "extraction", "variants", "cost", "simulate"}
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
  "measure": {*_LOW, "hardware"},
  "plan": {*_LOW, "hardware", "bounds", "placers", "models", "measure"},
  "keras": {*_LOW, "plan"},
  "report": {"graph", "formats", "cost", "simulate", "plan"},
}

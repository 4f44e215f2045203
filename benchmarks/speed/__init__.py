"""Speed of simulator, placers, search and extraction."""

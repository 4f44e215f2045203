"""Programs that make the figures of the documents; run them with -m."""

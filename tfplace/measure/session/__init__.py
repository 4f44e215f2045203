"""What runs inside a measuring process, and how it is told."""

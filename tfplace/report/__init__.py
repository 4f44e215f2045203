"""Tables, timelines and plots of placements."""

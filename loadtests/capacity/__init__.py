"""Open-loop load: trials at a constant rate, and the search for the highest rate within an SLO."""

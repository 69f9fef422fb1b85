"""Open-loop load: a constant-rate trial, and the search for the highest rate within an SLO."""

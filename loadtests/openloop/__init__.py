"""Open-loop requests: sent when they are due, by one process; what the instruments share."""

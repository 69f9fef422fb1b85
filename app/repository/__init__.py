"""Which artifacts exist, and whether they are intact."""

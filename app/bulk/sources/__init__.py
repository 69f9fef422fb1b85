"""Sources of rows: one file for each kind of input."""

"""The page at /, its live data, and the reports that it links to."""

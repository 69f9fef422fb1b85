"""The report of an export, on the terminal and as a page."""

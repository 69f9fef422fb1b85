"""Versions get their traffic in steps: the file, the steps, their judge, and shadows."""

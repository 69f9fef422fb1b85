"""Perfetto, as its user interface has it."""

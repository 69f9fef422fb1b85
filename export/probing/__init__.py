"""Learns which inputs a model takes by running it."""

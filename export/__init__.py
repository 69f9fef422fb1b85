"""Turns a model in models/definitions into a verified, self-describing artifact."""

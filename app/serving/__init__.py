"""Serving: which versions run on which replicas, and how this changes while the server runs."""

"""Chaos: a real server, faults and clients of every kind, and a checker that knows every answer."""

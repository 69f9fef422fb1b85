"""Payload to arrays and back, one file per input kind."""

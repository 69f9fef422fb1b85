"""Admission of requests: decided at once and as a whole."""

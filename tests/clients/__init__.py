"""Clients that others have written, or generate, against a real server."""

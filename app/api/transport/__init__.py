"""Connections: the fast path for predictions, and the calls of the ASGI application."""

"""Connections: the fast path for predictions, and uvicorn's own way to the ASGI application."""

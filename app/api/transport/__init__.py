"""Connections: the fast path for predictions, and uvicorn's path to the ASGI application."""

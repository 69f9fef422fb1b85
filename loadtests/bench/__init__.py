"""Requests per second on one core, beside a plain FastAPI handler and a bare ASGI application."""

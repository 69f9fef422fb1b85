"""Requests per second on one core, compared with other servers."""

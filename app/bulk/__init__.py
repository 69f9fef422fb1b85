"""Bulk scoring: files in, files out, with the server's backends and without HTTP."""

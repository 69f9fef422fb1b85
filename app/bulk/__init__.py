"""Bulk scoring: files in, files out, by the backends of the server and without HTTP."""

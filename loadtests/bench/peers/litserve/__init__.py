"""LitServe: FastAPI in front, a Python worker process."""

"""LitServe: a FastAPI front end and a Python worker process."""

"""MLServer: the V2 inference protocol under FastAPI."""

"""HTTP: parse, shape, map errors; uses FastAPI, never torch."""

"""HTTP: parse, shape, map errors; knows FastAPI, knows no torch."""

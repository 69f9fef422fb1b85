"""The baseline: the cost of HTTP alone under uvicorn."""

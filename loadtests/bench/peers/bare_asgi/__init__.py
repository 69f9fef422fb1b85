"""The floor: what HTTP alone costs under uvicorn."""

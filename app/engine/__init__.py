"""Cache, single-flight, batcher and replicas; knows neither FastAPI nor torch."""

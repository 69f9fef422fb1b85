"""Cache, single-flight, tickets and replicas; knows neither FastAPI nor torch."""

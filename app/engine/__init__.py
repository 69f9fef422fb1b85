"""Cache, single-flight, tickets and replicas; imports neither FastAPI nor torch."""

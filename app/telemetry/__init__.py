"""Tracing of requests and batches."""

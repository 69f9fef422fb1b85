"""Replicas, their threads, and the execution of batches in them."""

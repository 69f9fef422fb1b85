"""Bulk scoring and the service on real clusters of Ray, in this machine."""

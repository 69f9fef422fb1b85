"""The service on a Ray cluster: docs/ray.md."""

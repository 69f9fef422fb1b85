"""The service on a cluster of Ray: docs/ray.md."""

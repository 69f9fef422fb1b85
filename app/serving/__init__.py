"""Which versions are served, on which replicas, and how that changes while the server runs."""

"""What the service holds: Locust users, payloads and benchmarks."""

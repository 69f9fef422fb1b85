"""Load tests of the service: Locust users, payloads and benchmarks."""

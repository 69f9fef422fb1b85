"""Open-loop requests, sent when due by one process; shared by the load tests."""

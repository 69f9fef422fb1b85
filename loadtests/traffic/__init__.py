"""What is sent and whether the answers are right: calls of a workload, judged by content."""

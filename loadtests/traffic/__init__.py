"""Creates the calls of a workload, and judges the answers by content."""

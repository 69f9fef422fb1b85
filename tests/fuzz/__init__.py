"""A coverage-guided fuzzer on everything that reads what strangers send: see README.md."""

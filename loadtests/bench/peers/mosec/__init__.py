"""mosec: a Rust front, a Python worker process."""

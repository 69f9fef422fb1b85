"""mosec: a Rust front end and a Python worker process."""

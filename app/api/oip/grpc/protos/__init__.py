"""The interface, and what `make protos` makes of it."""

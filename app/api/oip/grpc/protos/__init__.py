"""The interface, and the modules that `make protos` generates from it."""

"""The compose stack in a real container engine: `make test-compose`."""

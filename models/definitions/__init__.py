"""The models that export can build, one per file."""

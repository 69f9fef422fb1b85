"""The handler that one would write first."""

"""Parts of the engine's execution."""

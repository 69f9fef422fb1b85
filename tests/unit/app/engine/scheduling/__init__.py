"""Parts of the engine's scheduling."""

"""Parts of the engine's admission."""

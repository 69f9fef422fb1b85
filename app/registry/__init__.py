"""The models: on disk, and in memory."""

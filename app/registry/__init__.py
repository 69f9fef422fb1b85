"""The models there are: on disk, and in memory."""

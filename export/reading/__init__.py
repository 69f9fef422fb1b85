"""Reads model files made elsewhere, and what the command line declares about their inputs."""

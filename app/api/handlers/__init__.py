"""Handlers over HTTP: callers' requests to them, and their own calls of models."""

"""Definitions of models in Hugging Face's format."""

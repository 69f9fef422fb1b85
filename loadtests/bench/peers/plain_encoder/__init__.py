"""The handler that one would write first around sentence-transformers."""

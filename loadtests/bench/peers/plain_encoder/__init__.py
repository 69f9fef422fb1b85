"""The simplest handler around sentence-transformers."""

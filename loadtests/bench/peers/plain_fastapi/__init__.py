"""The simplest handler."""

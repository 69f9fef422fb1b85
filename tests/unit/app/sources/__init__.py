"""Tests of parts of sources that need no store."""

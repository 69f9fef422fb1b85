"""Tests of export.handlers."""

"""Tests of open-loop load."""

"""Scheduling: when to form a batch, how large, and on which replica."""

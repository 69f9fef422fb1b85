"""Replicas and their threads, and how a batch runs in one."""

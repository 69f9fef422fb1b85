"""Exports handlers: reads their class, runs them on examples, and writes the artifact."""

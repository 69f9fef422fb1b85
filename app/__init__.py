"""The serving process: artifacts in, predictions out."""

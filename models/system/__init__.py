"""Files, processes and the machine: knows nothing of models."""

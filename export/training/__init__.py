"""Training by Lightning: `python -m export train`, see `docs/training.md`."""

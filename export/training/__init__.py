"""Training by Lightning: `torchlane train`, see `docs/training.md`."""

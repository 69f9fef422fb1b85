"""TorchServe's calls, so that its clients continue to work."""

"""The calls of TorchServe, so that its clients go on working."""

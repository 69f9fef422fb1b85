"""The native calls: /predict, /batch-predict and /models."""

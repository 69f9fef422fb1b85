"""The server's own calls: /predict, /batch-predict and /models."""

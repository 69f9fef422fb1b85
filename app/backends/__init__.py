"""One loaded model on one device."""

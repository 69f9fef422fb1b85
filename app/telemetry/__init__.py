"""What becomes of requests and batches, told to whatever follows them."""

"""Pictures, sounds and texts to arrays, the same in training, export, load tests and serving."""

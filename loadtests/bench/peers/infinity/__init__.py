"""infinity: sentence encoders by torch, with batching and OpenAI's call; only its environment."""

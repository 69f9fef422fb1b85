"""infinity: sentence encoders in torch, with batching and OpenAI's API; only its environment."""

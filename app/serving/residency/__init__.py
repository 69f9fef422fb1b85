"""Which models on demand are in memory: measured bytes and seconds, and a policy over them."""

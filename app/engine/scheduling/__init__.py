"""When a batch is formed, how large, and on which replica."""

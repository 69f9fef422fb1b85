"""PyTriton: NVIDIA's Triton server, whose Python backend calls a function of this process."""

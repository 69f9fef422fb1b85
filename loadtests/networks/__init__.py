"""Real networks, beside what a user would write: FastAPI around ONNX Runtime."""

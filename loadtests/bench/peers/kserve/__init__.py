"""KServe's own server in Python: FastAPI, the Open Inference Protocol, no batching."""

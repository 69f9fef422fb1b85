"""The REST calls of KServe version 1 and TensorFlow Serving."""

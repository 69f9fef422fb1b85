"""The container calls of SageMaker, MLflow and Vertex AI."""

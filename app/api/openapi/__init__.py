"""The OpenAPI document and the schemas in it."""

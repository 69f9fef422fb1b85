"""Schemathesis: what the OpenAPI document says, tried on a real server."""

"""Tests of the Open Inference Protocol over gRPC."""

"""The Open Inference Protocol over gRPC; imported only where TORCHLANE_GRPC_PORT is set."""

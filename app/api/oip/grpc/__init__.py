"""The Open Inference Protocol over gRPC; imported only if TORCHLANE_GRPC_PORT is set."""

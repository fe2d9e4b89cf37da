"""What survives the process: checkpoints. No gRPC."""

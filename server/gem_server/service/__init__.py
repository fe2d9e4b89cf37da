"""gRPC layer: maps `gemps.v1` messages to `flow` and `state`."""

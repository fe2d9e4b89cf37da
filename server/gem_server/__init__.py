"""The gemps server: a gRPC service that holds a model's parameters and applies workers' deltas."""

__version__ = "0.1.0"

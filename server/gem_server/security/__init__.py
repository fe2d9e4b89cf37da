"""Tokens and certificates; independent of gRPC."""

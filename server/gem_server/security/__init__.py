"""Tokens, certificates and their reloading; independent of gRPC."""

"""The gRPC face of the server: turns messages into calls on `flow` and `state`, and what they say into messages.

The only part of the server that knows gRPC and `gemps.v1`. It decides nothing.
"""

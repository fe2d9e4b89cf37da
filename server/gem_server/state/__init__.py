"""The server's state. No I/O. Event loop thread only."""

"""Memory shared with workers on this machine."""

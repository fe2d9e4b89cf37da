"""Read-only HTTP pages and metrics."""

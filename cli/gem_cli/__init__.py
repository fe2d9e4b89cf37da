"""The `gemps` command line."""

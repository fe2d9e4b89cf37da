"""`gemps` command line."""

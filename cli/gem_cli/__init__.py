"""The `gemps` command: the one door, and the only code that may know both the server and the worker."""

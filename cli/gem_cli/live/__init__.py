"""The live view of a run in a terminal: `gemps status --watch`."""

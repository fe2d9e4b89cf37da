"""One file a command; each imports what it needs when it runs, so that `gemps --help` is quick."""

"""`python -m gem_cli` is `gemps`."""

from gem_cli.main import main

main()

"""`gemps version`."""

from gem_cli.training.system_info import versions


def version() -> None:
    """Print versions, for bug reports."""
    found = versions()
    print(f"gemps {found.pop('gemps')}")
    for package, number in found.items():
        print(f"  {package} {number}")

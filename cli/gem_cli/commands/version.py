"""`gemps version`."""

from gem_cli.training.system_info import versions


def version() -> None:
    """Print the versions of gemps, Python and packages; for bug reports."""
    found = versions()
    print(f"gemps {found.pop('gemps')}")
    for package, number in found.items():
        print(f"  {package} {number}")

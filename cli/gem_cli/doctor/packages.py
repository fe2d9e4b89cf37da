"""Checks packages by metadata, without imports."""

import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from gem_cli.doctor.check_result import CheckResult, ok, problem, warning
from gem_cli.training.system_info import versions
from gem_core.extras import how_to_install

_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda found, wanted: found >= wanted,
    "<": lambda found, wanted: found < wanted,
    "==": lambda found, wanted: found == wanted,
    "!=": lambda found, wanted: found != wanted,
}
_REPAIR = "pip install . in a checkout of gemps"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?")


def installed(name: str) -> str | None:
    """Distribution's version, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def list_versions() -> CheckResult:
    """Name the version of gemps, of Python and of the packages that matter, for bug reports."""
    found = versions()
    named = {"gemps": found.pop("gemps"), **found}
    return ok("versions", ", ".join(f"{name} {number}" for name, number in named.items()))


def check_python() -> CheckResult:
    """Report the Python version."""
    return ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}")


def check_packages(
    requirements: Sequence[str] | None = None, version_of: Callable[[str], str | None] = installed
) -> Iterator[CheckResult]:
    """Compare packages with requirements."""
    wrong = False
    for requirement in requirements if requirements is not None else requires("gemps") or ():
        if (found := _check_requirement(requirement, version_of)) is not None:
            wrong = True
            yield found
    if not wrong:
        yield ok("packages", "their versions are as gemps requires")


def check_torch_pair(
    version_of: Callable[[str], str | None] = installed,
    requirements_of: Callable[[str], Sequence[str] | None] = requires,
) -> CheckResult:
    """Check that torch and torchvision match."""
    torch, vision = version_of("torch"), version_of("torchvision")
    if torch is None:
        return warning("torch", f"not installed, so this machine cannot train: {how_to_install('worker')}")
    if vision is None:
        return warning("torch", f"{torch}, without torchvision: tasks need it: {how_to_install('worker')}")
    fix = "install both from one place at once: pip install --upgrade torch torchvision"
    for requirement in requirements_of("torchvision") or ():
        name, wanted, _ = _parts(requirement)
        if name == "torch" and not _meets(torch, wanted):
            return problem(
                "torch", f"torch {torch} and torchvision {vision} do not match (it wants torch{wanted}); {fix}"
            )
    builds = [one.partition("+")[2] for one in (torch, vision)]
    if all(builds) and builds[0] != builds[1]:
        return problem("torch", f"torch {torch} and torchvision {vision} are built for different devices; {fix}")
    return ok("torch", f"torch {torch} and torchvision {vision} match")


def _check_requirement(requirement: str, version_of: Callable[[str], str | None]) -> CheckResult | None:
    name, wanted, marker = _parts(requirement)
    found = version_of(name)
    if found is None:
        # Marked requirements are optional.
        return None if marker else problem("packages", f"{name} is not installed: {_REPAIR}")
    if _meets(found, wanted):
        return None
    return problem("packages", f'{name} {found} is not {wanted}: pip install --upgrade "{name}{wanted}"')


def _parts(requirement: str) -> tuple[str, str, str]:
    match = _REQUIREMENT.fullmatch(requirement)
    name, wanted, marker = match.groups() if match else (requirement, "", "")
    return name, wanted.replace(" ", ""), (marker or "").strip()


def _meets(found: str, wanted: str) -> bool:
    number = _release(found)
    for condition in filter(None, wanted.split(",")):
        match = re.fullmatch(r"(>=|<|==|!=)([\d.]+)", condition)
        if match and not _COMPARISONS[match[1]](number, _release(match[2])):
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    """`2.11.0+cpu` -> (2, 11)."""
    match = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(one) for one in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

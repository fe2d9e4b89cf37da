"""A run's sinks."""

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from gem_cli.errors import USAGE, CommandError
from gem_cli.sinks.interface import RunInfo, Sink
from gem_cli.sinks.scalars import evaluation, scalars
from gem_cli.status_view import Status, clock
from gem_core.extras import PACKAGES, how_to_install

ENTRY_POINTS = "gemps.sinks"
NONE = "none"


def known_sinks() -> dict[str, metadata.EntryPoint]:
    """Installed sinks; the first duplicate wins."""
    found: dict[str, metadata.EntryPoint] = {}
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(entry_point.name, entry_point)
    return found


def chosen_sinks(text: str) -> tuple[str, ...]:
    """Parse `--sinks`; raises CommandError."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == (NONE,):
        return ()
    known = known_sinks()
    for name in names:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none is installed"
            raise CommandError(f"--sinks {name}: there is no such sink; choose of: {listed}", USAGE)
    return names


class Sinks:
    """Feeds sinks; reports failures to `tell(name, text)`."""

    def __init__(self, names: tuple[str, ...], run: RunInfo, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._sinks: dict[str, Sink] = {}
        self._clock = -1
        self._evaluated = -1
        known = known_sinks()
        for name in names:
            try:
                self._sinks[name] = known[name].load()(run)
            except ModuleNotFoundError as error:
                fix = how_to_install(name) if error.name in PACKAGES.get(name, ()) else "install it"
                tell("sink_missing", f"--sinks {name}: {error.name} is not installed: {fix}, or --sinks {NONE}")
            except Exception as error:
                tell("sink_failed", f"--sinks {name} cannot begin: {error}")

    def status(self, status: Status) -> None:
        """Write the figures of a version that is newer than what was written."""
        now, seconds = clock(status), float(status.get("run_seconds", 0))
        if now > max(1, self._clock):
            self._clock = now
            self._each("write", now, seconds, scalars(status))

    def evaluation(self, status: Status) -> None:
        """Write the newest evaluation, if it was not written."""
        seen = evaluation(status)
        if seen is not None and seen[0] > self._evaluated:
            self._evaluated, figures = seen
            self._each("write", self._evaluated, float(status.get("run_seconds", 0)), figures)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Close the sinks."""
        self._each("close", summary)

    def _each(self, method: str, *arguments: Any) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                getattr(sink, method)(*arguments)
            except Exception as error:
                del self._sinks[name]
                self._tell("sink_failed", f"--sinks {name} failed, and the run continues without it: {error}")

"""The errors of commands, and their exit codes."""

from pathlib import Path

USAGE = 2  # wrong usage, or a refusal that is final: starting again changes nothing
FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT


class CommandError(Exception):
    """An error that ends a command. `main` prints its text, and exits with `code`."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def refused(error: Exception) -> CommandError:
    """Convert a client library error."""
    from gem_worker.client import ClientError  # slow, but loaded already

    return CommandError(str(error), USAGE if isinstance(error, ClientError) and error.is_final else FAILED)


def last_lines(log: Path, count: int = 12, *, start: int = 0) -> list[str]:
    """Return the last `count` lines of a log. Lines that begin in its first `start` bytes do not count."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]

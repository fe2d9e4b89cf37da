"""What a command says when it cannot go on: one line that names the fix, and an exit code."""

from importlib.metadata import version
from pathlib import Path

USAGE = 2  # as for every command-line tool: the caller's flags or settings are wrong
FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


class CommandError(Exception):
    """Ends a command: `main` prints the message on stderr, without a traceback, and exits with `code`."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def missing_worker_extra(error: ImportError) -> CommandError:
    """Make the message for a command that needs PyTorch in an environment without it."""
    return CommandError(f'{error.name or "a package"} is not installed: pip install "gemps[worker]"')


def missing_certs_extra() -> CommandError:
    """Make the message for `gemps certs` in an environment without what makes certificates."""
    return CommandError('cryptography is not installed: pip install "gemps[certs]"')


def refused(error: Exception) -> CommandError:
    """Make the message for what the client library raised; its texts name the fix already."""
    from gem_worker.client import AddressError, CredentialsError  # gRPC, which whoever has such an error has loaded

    if isinstance(error, AddressError | CredentialsError):
        return CommandError(str(error), USAGE)
    hint = ""
    if getattr(error, "reason", "") == "UNIMPLEMENTED":
        hint = f". If it is one, its version differs from this one's, gemps {version('gemps')}"
    return CommandError(f"{error}{hint}")


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Return the last non-empty lines of a child's log; [] when there is none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]

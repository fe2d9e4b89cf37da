"""`python -m gem_cli.training.tether PARENT_PID SIGNAL COMMAND...`.

COMMAND gets SIGNAL when the parent dies (Linux only). `preexec_fn` is unsafe with threads.
"""

import os
import signal
import sys

from gem_worker.client.operating_system import end_with_parent


def main() -> None:
    """Set the signal and exec."""
    parent, number, *command = sys.argv[1:]
    end_with_parent(int(number))
    if os.getppid() != int(parent):  # died before
        sys.exit(1)
    # Background jobs inherit an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's own


if __name__ == "__main__":
    main()

"""`python -m gem_cli.training.tether PARENT_PID SIGNAL COMMAND...`: tie COMMAND to its parent.

Execs COMMAND, which gets SIGNAL when the parent dies (Linux only). `preexec_fn` is unsafe with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Set the signal and exec."""
    parent, number, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != int(parent):  # died before prctl
            sys.exit(1)
    # Background jobs inherit an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's own


if __name__ == "__main__":
    main()

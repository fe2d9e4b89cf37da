"""Tie a program to the process that starts it: `python -m gem_cli.training.tether PARENT_PID SIGNAL COMMAND...`.

Becomes COMMAND (same process id), which gets SIGNAL from the kernel should the parent die in any way, kill -9
included. This is a program of its own rather than a `preexec_fn`, which is unsafe once a process has threads. Where
there is no PR_SET_PDEATHSIG (anything but Linux) it just becomes COMMAND.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Tie and become; exits with 1 when the parent is gone already."""
    parent, number, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before the call
            sys.exit(1)
    # A shell's background job ignores SIGINT and hands that down; these children are asked to end by it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's own


if __name__ == "__main__":
    main()

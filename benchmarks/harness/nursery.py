"""Where the processes of contenders come from.

Workers: from one process that has imported what they need, and forks. 32 workers that each import PyTorch would keep
two cores busy for a minute before each run. This one does it once; it runs nothing else, so it has one thread when it
forks. `python -m benchmarks.harness.nursery` reads a JSON line for each process to start from standard input, and
answers with its process id.

Servers start by themselves, so that their memory is their own: `python -m benchmarks.harness.nursery ORDER` takes the
line as an argument.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any


def become(order: dict[str, Any]) -> None:
    """The life of a process of a contender."""
    from benchmarks.harness.desk import ProcessDesk
    from benchmarks.peers import CONTENDERS
    from benchmarks.peers.interface import Case

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    contender = CONTENDERS[order["contender"]]
    case = Case(order["parameters"], order["workers"])
    desk = ProcessDesk(order["socket"], order["role"], order["rank"])
    try:
        if order["role"] == "server":
            contender.serve(case, desk)
        else:
            contender.work(case, order["address"], order["rank"], desk)
            if contender.updates:
                from benchmarks.peers.model import check_fresh

                check_fresh()
        desk.say_ended()
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        desk.line.say(error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Fork for each line, or be what the argument says."""
    if len(sys.argv) > 1:
        become(json.loads(sys.argv[1]))
        sys.stdout.flush()
        os._exit(0)  # as those that are forked: what a library does at exit is no part of the run
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them; their end is seen on their sockets
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness' to answer
    for line in sys.stdin:
        order = json.loads(line)
        for module in order["preload"]:
            importlib.import_module(module)
        child = os.fork()
        if child == 0:
            try:
                become(order)
                sys.stdout.flush()
            finally:
                os._exit(0)  # finalizers of inherited objects are not this process' business
        print(json.dumps({"pid": child}), flush=True)


if __name__ == "__main__":
    main()

"""What the kernel says of processes, from /proc: the tree below one, its processor time, its memory."""

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.1
TREE_SECONDS = 1.0


def tree(roots: Iterable[int]) -> list[int]:
    """The processes below `roots` that are there now, and `roots`."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None:
                children[int(fields[1])].append(int(entry))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(children[pid])
    return found


def processor_seconds(roots: Iterable[int]) -> float:
    """Processor time that the trees below `roots` have used, ended children that were waited for included."""
    total = 0
    for pid in tree(roots):
        fields = _stat(pid)
        if fields is not None:
            total += sum(int(value) for value in fields[11:15])  # utime, stime, cutime, cstime
    return total / TICKS


def anonymous_and_shared(pids: Iterable[int]) -> tuple[int, int]:
    """Bytes of anonymous memory, and of shared memory mapped; what several map counts several times."""
    anonymous = shared = 0
    for pid in pids:
        values = _kilobytes(Path(f"/proc/{pid}/status"))
        anonymous += values.get("RssAnon", 0)
        shared += values.get("RssShmem", 0)
    return anonymous, shared


def anonymous_once(pids: Iterable[int]) -> int:
    """Bytes of anonymous memory, each page once, also those that forked processes inherited."""
    return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup")).get("Pss_Anon", 0) for pid in pids)


def shared_once(pids: Iterable[int]) -> int:
    """Bytes of shared memory that `pids` map, each page once (as long as nobody else maps it)."""
    return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup")).get("Pss_Shmem", 0) for pid in pids)


def shared_named(pid: int, name: str) -> int:
    """Bytes that the process maps of memory files of this name (memfd_create)."""
    total, counts = 0, False
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
            first = line.split(maxsplit=1)[0]
            if not first.endswith(":"):
                counts = f"/memfd:{name} " in line
            elif counts and first == "Rss:":
                total += 1024 * int(line.split()[1])
    return total


def end(roots: Iterable[int], patience: float = 10.0) -> None:
    """End the trees below `roots`: ask, wait, then kill. Only give it what you started."""
    pids = tree(roots)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        limit = time.monotonic() + patience
        while any(alive(pid) for pid in pids) and time.monotonic() < limit:
            time.sleep(0.02)
        pids = [pid for pid in pids if alive(pid)]


def alive(pid: int) -> bool:
    """Whether it is there, and has not ended."""
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


class Sampler:
    """The peaks of a server's memory, sampled from the start of its life to its end, in a thread."""

    def __init__(self, root: int) -> None:
        self.anonymous = 0
        self.shared = 0
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more samples."""
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        looked = 0.0
        pids: list[int] = []
        while not self._over.wait(SAMPLE_SECONDS):
            if time.monotonic() - looked > TREE_SECONDS:
                pids = tree([self._root])
                looked = time.monotonic()
            anonymous, shared = anonymous_and_shared(pids)
            self.anonymous = max(self.anonymous, anonymous)
            self.shared = max(self.shared, shared)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (the state) on: what is in brackets before may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _kilobytes(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    found = {}
    for line in lines:
        key, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            found[key] = int(words[0]) * 1024
    return found

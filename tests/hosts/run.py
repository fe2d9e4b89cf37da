"""What a run on several hosts tells of itself: the server's status, and the last words of its workers."""

import json
import re
from typing import Any

from tests.hosts.cluster import SERVER_ADDRESS, Cluster, Program


class Watch:
    """`gemps status --watch --json` beside a run."""

    def __init__(self, hosts: Cluster) -> None:
        self.program = hosts.start("s", "gemps", "status", SERVER_ADDRESS, "--watch", "--json", "--interval", "0.5")

    @property
    def newest(self) -> dict[str, Any]:
        """The newest report; {} before the first."""
        whole_lines = self.program.text.rpartition("\n")[0].splitlines()
        return json.loads(whole_lines[-1]) if whole_lines else {}

    def workers(self) -> dict[str, dict[str, Any]]:
        """The newest report's workers, by the host in their names."""
        return {str(worker["name"]).split("-")[0]: worker for worker in self.newest.get("workers", ())}

    def commits(self) -> dict[str, int]:
        """Applied commits of each worker, by host."""
        return {host: int(worker["commits"]) for host, worker in self.workers().items()}

    def wait_until_each_commits(self, hosts: list[str], more: int) -> None:
        """Return when each of them has so many more commits than now."""
        before = self.commits()

        def moved() -> bool:
            now = self.commits()
            return all(now.get(host, 0) >= before.get(host, 0) + more for host in hosts)

        self.program.wait_until(moved, f"{more} more commits of each of {hosts} than {before}")


def last_words(worker: Program) -> dict[str, float]:
    """The figures of a worker's last line: steps, skipped, dropped, exchange_seconds, ..."""
    (line,) = [line for line in worker.text.splitlines() if "] ended: the run is finished" in line]
    return {name: float(value) for name, value in re.findall(r"(\w+)=(\S+)", line)}

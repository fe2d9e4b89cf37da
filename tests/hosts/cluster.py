"""A small cluster on one Linux machine: a server's host and workers' hosts, each with its own network and name.

The hosts are network namespaces on a bridge, made by the scripts in the folder that GEMPS_NETLAB names: hosts.sh
(up, run, cut, join, loss) and delaylink.py (delay). The names of the namespaces live in a mount namespace of this
cluster's own, so that clusters do not see each other, and all of it is gone when its last process is.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually

VARIABLE = "GEMPS_NETLAB"
SERVER_ADDRESS = "10.77.0.1:50051"
PATIENCE = 180.0  # seconds: importing torch on a busy machine; nothing is measured by it

# A user's own settings must not decide what a test sees; `gemps` is found as in an activated environment.
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("GEMPS_")} | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "120",
    "GEMPS_LOG_FORMAT": "human",  # as on the terminals that the pages speak of
}
# Gives the host its name and, as another machine has another one, another boot id; then becomes the command.
_BE_HOST = 'hostname "$1"; mount --bind "$2" /proc/sys/kernel/random/boot_id; cd "$3"; shift 3; exec "$@"'


def why_not() -> str:
    """Return why there can be no cluster here; empty when there can."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return f"{VARIABLE} does not name the folder with hosts.sh and delaylink.py, which make hosts for this test"
    missing = [name for name in ("hosts.sh", "delaylink.py") if not (Path(folder) / name).is_file()]
    missing += [name for name in ("ip", "iptables", "nsenter", "unshare") if shutil.which(name) is None]
    if not Path("/dev/net/tun").exists():
        missing.append("/dev/net/tun")
    if missing:
        return f"hosts for this test need {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "making network namespaces takes root"


class Program:
    """A process on a host, and everything it prints."""

    def __init__(self, host: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.host = host
        self._process = process
        self.log = log

    @property
    def text(self) -> str:
        """What it has printed so far, both streams."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> int:
        """Return its exit code, once it has ended by itself."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.host} never ended:\n{self.text}") from None

    def wait_for(self, text: str) -> None:
        """Return when it has printed `text`."""
        self.wait_until(lambda: text in self.text, f"{text!r}")

    def wait_until(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Return when the condition holds; fails when the program ends before, or it never does."""

        def look() -> bool:
            ended = self._process.poll()
            holds = condition()
            assert holds or ended is None, f"{self.host} ended with {ended} before: {what}\n{self.text}"
            return holds

        eventually(look, lambda: f"{self.host} never came to: {what}\n{self.text}", patience=patience, interval=0.1)

    def terminate(self) -> int:
        """SIGTERM to it and its children; returns the exit code."""
        os.killpg(self._process.pid, signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it and its children, whatever they do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)


class Cluster:
    """Hosts "s" (10.77.0.1) and "w1" (10.77.0.11), "w2", ...; each has a folder of its own, `folder(host)`."""

    def __init__(self, root: Path, holder: int) -> None:
        self._root = root
        self._holder = holder
        self._netlab = Path(os.environ[VARIABLE]).resolve()
        self._programs: list[Program] = []
        self._far: set[str] = set()

    def folder(self, host: str) -> Path:
        """Return where the host's programs run."""
        place = self._root / host
        if not place.exists():
            place.mkdir()
            (place / ".boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        return place

    def start(self, host: str, *command: str) -> Program:
        """Start a command on a host."""
        folder = self.folder(host)
        be_host = ["unshare", "--mount", "--uts", "sh", "-e", "-c", _BE_HOST, "sh", host, f"{folder}/.boot_id"]
        return self._start(host, "hosts.sh", "run", host, *be_host, str(folder), *command)

    def run(self, host: str, *command: str) -> str:
        """Run a command on a host; returns what it printed, and fails unless it exits 0."""
        program = self.start(host, *command)
        code = program.wait()
        assert code == 0, f"{host}: {' '.join(command)} ended with {code}:\n{program.text}"
        return program.text

    def cut(self, host: str) -> None:
        """Unplug a host."""
        if host in self._far:
            self.run("hub", "ip", "link", "set", f"t{host}", "nomaster")
        else:
            self.hosts("cut", host)

    def join(self, host: str) -> None:
        """Plug it in again."""
        if host in self._far:
            self.run("hub", "ip", "link", "set", f"t{host}", "master", "br0")
        else:
            self.hosts("join", host)

    def delay(self, host: str, address: str, seconds: float, loss: float = 0.0) -> None:
        """Give the host this address, and only a link that delays by so much, and loses this part, each way."""
        link = self._start(host, "delaylink.py", host, address, str(seconds), str(loss))
        link.wait_for("link up")
        self.run(host, "ip", "link", "set", "eth0", "down")
        self._far.add(host)

    def lose(self, host: str, address: str, fraction: float) -> None:
        """Drop this part of the packets that reach the host, and of those from it that reach the server."""
        self.hosts("loss", host, str(fraction))
        drop = ["-m", "statistic", "--mode", "random", "--probability", str(fraction), "-j", "DROP"]
        self.run("s", "iptables", "-A", "INPUT", "-s", address, *drop)

    def lost_packets(self, host: str) -> int:
        """Return how many packets the host has dropped on arrival."""
        rules = self.run(host, "iptables", "-L", "INPUT", "-v", "-x", "-n").splitlines()
        return sum(int(line.split()[0]) for line in rules if "DROP" in line.split())

    def kill_programs(self) -> None:
        """End everything that was started here, and what it has left on the hosts."""
        for program in reversed(self._programs):
            program.kill()
        in_place = ["nsenter", "--target", str(self._holder), "--mount"]
        left = 'for name in $(ip netns list | cut -d" " -f1); do ip netns pids "$name"; done'
        found = subprocess.run([*in_place, "sh", "-c", left], capture_output=True, text=True, check=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def hosts(self, *arguments: str) -> None:
        done = self._start("hub", "hosts.sh", *arguments)
        assert done.wait() == 0, done.text

    def _start(self, host: str, script: str, *arguments: str) -> Program:
        log = self._root / f"{len(self._programs):03d}-{host}.log"
        command = ["nsenter", "--target", str(self._holder), "--mount", str(self._netlab / script), *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=_CLEAN,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        program = Program(host, process, log)
        self._programs.append(program)
        return program


@contextmanager
def cluster(root: Path, workers: int) -> Iterator[Cluster]:
    """Make a server's host and so many workers' hosts; gone, with all their processes, at the end of the block."""
    own_names = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && echo made && exec cat"
    command: Sequence[str] = ("unshare", "--mount", "--propagation", "private", "sh", "-c", own_names)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "made\n"
        made = Cluster(root, holder.pid)
        try:
            made.hosts("up", str(workers))
            yield made
        finally:
            made.kill_programs()

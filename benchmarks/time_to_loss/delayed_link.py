"""A link of limited rate, with delay, between a host and the switch; needs root and /dev/net/tun, but no netem.

    python -m benchmarks.time_to_loss.delayed_link SWITCH PORT HOST ADDRESS MEGABITS SECONDS

SWITCH, HOST: network namespaces; PORT: of bridge br0, new. Two TAP devices, joined here. Each direction has a queue of
QUEUE_SECONDS; frames that find it full are dropped.
"""

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

MTU = 9000
QUEUE_SECONDS = 0.05
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
SET_INTERFACE, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002  # TUNSETIFF; IFF_TAP | IFF_NO_PI


class Direction:
    """Frames on their way to `output`."""

    def __init__(self, output: int, bytes_per_second: float, delay: float) -> None:
        self._output = output
        self._rate = bytes_per_second
        self._delay = delay
        self._free_at = 0.0
        self._frames: deque[tuple[float, bytes]] = deque()

    def accept(self, frame: bytes, now: float) -> None:
        """Queue a frame, or drop it."""
        start = max(now, self._free_at)
        if start - now <= QUEUE_SECONDS:
            self._free_at = start + len(frame) / self._rate
            self._frames.append((self._free_at + self._delay, frame))

    def deliver(self, now: float) -> float:
        """Write the frames that are due; return seconds until the next one."""
        while self._frames:
            due, frame = self._frames[0]
            if due > now:
                return due - now
            self._frames.popleft()
            with suppress(BlockingIOError):  # the host's queue is full: dropped
                os.write(self._output, frame)
        return 1.0


def open_tap(namespace: str, name: str) -> int:
    """Enter a namespace and create a TAP device there; return its file."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (Path("/run/netns") / namespace).open("rb") as file:
        if libc.setns(file.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return device


def run(*command: str) -> None:
    """Run `ip` or the like in the namespace entered last."""
    subprocess.run(command, check=True)


def main() -> None:
    """Pass frames until killed."""
    switch, port, host, address, megabits, delay = sys.argv[1:]
    at_switch = open_tap(switch, port)
    run(*f"ip link set {port} mtu {MTU} master br0 up".split())
    at_host = open_tap(host, "eth0")
    run(*f"ip link set eth0 mtu {MTU} up".split())
    run(*f"ip address add {address}/24 dev eth0".split())
    print("up", flush=True)
    rate = float(megabits) * 1e6 / 8
    outputs = {at_switch: Direction(at_host, rate, float(delay)), at_host: Direction(at_switch, rate, float(delay))}
    while True:
        now = time.monotonic()
        wait = min(direction.deliver(now) for direction in outputs.values())
        readable, _, _ = select.select(list(outputs), [], [], wait)
        for device in readable:
            outputs[device].accept(os.read(device, MTU + 64), time.monotonic())


if __name__ == "__main__":
    main()

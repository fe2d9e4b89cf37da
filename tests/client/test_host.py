"""Which machine a worker says it is on: its containers are one host, since they share its devices."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from gem_worker.client import Client
from gem_worker.client.host import BOOT_ID, this_host

from tests.client.models import SMALL
from tests.client.real_server import RealServer

TELL = "from gem_worker.client.host import this_host; print(this_host())"
on_linux = pytest.mark.skipif(not BOOT_ID.exists(), reason="only Linux has a boot id")


@on_linux
def test_host_is_the_kernel_which_all_containers_of_a_machine_share() -> None:
    assert this_host() == BOOT_ID.read_text(encoding="ascii").strip()
    assert len(this_host()) == 36


@on_linux
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare (util-linux)")
def test_another_host_name_is_the_same_host() -> None:
    """As in a container: a UTS namespace with a host name of its own."""
    inside = ["unshare", "--uts", "sh", "-c", 'hostname a-container && hostname && exec "$@"', "sh"]
    told = subprocess.run([*inside, sys.executable, "-c", TELL], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.splitlines() == ["a-container", this_host()]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_without_a_boot_id_it_is_the_host_name(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "boot_id"
    if content is not None:
        file.write_bytes(content)
    assert this_host(file) == socket.gethostname()


def test_workers_of_one_machine_count_up_on_it_unless_told_otherwise() -> None:
    server = RealServer()
    clients = [
        Client(server.address, worker_name=name, layout=SMALL, host_id=host)
        for name, host in (("a", None), ("b", "elsewhere"), ("c", None))
    ]
    try:
        assert [client.join().host_rank for client in clients] == [0, 0, 1]
    finally:
        for client in clients:
            client.close()
        server.stop()

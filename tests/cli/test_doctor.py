"""`gemps doctor` names what is broken, and the fix: with real servers, and with what metadata and torch may say."""

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gem_cli.doctor import gpu, machine, packages
from gem_cli.doctor.check_result import CheckResult, Level
from gem_cli.doctor.gpu import Hardware
from gem_cli.doctor.server import Visit, check_shared_memory
from gem_cli.errors import FAILED
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gem_worker.client import ClientSettings

from tests.cli.processes import gemps, in_terminal
from tests.client.conftest import Connect, Serve
from tests.client.models import SMALL
from tests.client.real_server import begin
from tests.client.test_connecting import web_server
from tests.security.authority import Authority, replace
from tests.security.conftest import authority, connect, serve, stranger, tls, tls_client

__all__ = ["authority", "connect", "serve", "stranger", "tls", "tls_client"]

OBSERVER, WORKER = "observer" * 4, "worker" * 4


def visit(address: str, *, expected: bool = True, **settings: Any) -> dict[str, CheckResult]:
    return {one.check: one for one in Visit(address, ClientSettings(**settings), expected=expected).findings()}


def broken(found: dict[str, CheckResult]) -> str:
    """Return the text of the only finding, which must be a problem."""
    (finding,) = found.values()
    assert finding.level is Level.PROBLEM, finding
    return finding.text


def test_a_server_that_is_well_has_five_good_lines(serve: Serve, connect: Connect) -> None:
    server = serve()
    begin(connect(server.address, SMALL).client, SMALL)
    found = visit(server.address)
    assert {name: one.level for name, one in found.items()} == dict.fromkeys(
        ("server", "rule", "version", "room", "tls"), Level.OK
    )
    assert "training, version 1, 1 worker" in found["server"].text
    assert found["rule"].text == "downpour, eta 0.05"


def test_an_address_where_nothing_listens() -> None:
    assert "gemps serve" in broken(visit("127.0.0.1:9"))
    (finding,) = visit("127.0.0.1:9", expected=False).values()
    assert finding.level is Level.WARNING  # nobody said that there is one
    assert "gemps serve starts one" in finding.text


def test_an_address_that_is_none() -> None:
    assert "write HOST:PORT" in broken(visit("nonsense"))


def test_another_program_at_the_address() -> None:
    with web_server() as address:
        assert "does not speak gRPC" in broken(visit(address))


def test_a_server_with_tls_and_a_client_without(serve: Serve, tls: dict[str, Any]) -> None:
    text = broken(visit(serve(**tls).address))
    assert "speaks TLS only" in text
    assert "--tls-ca" in text


def test_a_client_with_tls_and_a_server_without(serve: Serve, tls_client: dict[str, Any]) -> None:
    assert "speaks no TLS" in broken(visit(serve().address, **tls_client))


def test_a_certificate_of_another_authority(serve: Serve, tls: dict[str, Any], stranger: Authority) -> None:
    assert "GEMPS_CLIENT_TLS_CA" in broken(visit(serve(**tls).address, tls_ca=str(stranger.file)))


def test_a_certificate_that_has_expired_or_a_wrong_clock(
    serve: Serve, authority: Authority, tls_client: dict[str, Any], tmp_path: Path
) -> None:
    certificate, key = authority.pair("server", days=-1).write(tmp_path, "old")
    text = broken(visit(serve(tls_cert=certificate, tls_key=key).address, **tls_client))
    assert "expired" in text
    assert "clock" in text


def test_a_server_that_asks_for_certificates_of_clients(
    serve: Serve, tls: dict[str, Any], tls_client: dict[str, Any], authority: Authority
) -> None:
    assert "GEMPS_CLIENT_TLS_CERT" in broken(visit(serve(**tls, tls_client_ca=authority.file).address, **tls_client))


def test_tokens_that_are_missing_unknown_or_for_something_else(serve: Serve, tmp_path: Path) -> None:
    tokens = replace(tmp_path / "tokens", f"worker {WORKER}\nobserver {OBSERVER}\n")
    address = serve(tokens=tokens).address
    assert "asks for a token, and none is given" in broken(visit(address))
    assert "--token-file" in broken(visit(address, token="x" * 24))
    (finding,) = visit(address, token=WORKER).values()
    assert finding.level is Level.WARNING
    assert "knows this token" in finding.text
    assert visit(address, token=OBSERVER)["server"].level is Level.OK
    assert "cannot be read" in broken(visit(address, token_file=tmp_path / "none"))


async def test_a_server_that_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(ServerSettings(bind="127.0.0.1:0"))
    compiled = threading.Event()
    monkeypatch.setattr(server.rule, "warm_up", compiled.wait)
    starting = asyncio.create_task(server.start())
    try:
        async with asyncio.timeout(60):
            while not server.port:
                await asyncio.sleep(0)
            found = await asyncio.to_thread(visit, f"127.0.0.1:{server.port}")
    finally:
        compiled.set()
        await starting
        await server.stop()
    assert found["server"].level is Level.WARNING
    assert "is starting" in found["server"].text


def test_a_run_that_is_finished_and_one_without_room(serve: Serve, connect: Connect) -> None:
    server = serve(memory_limit=300 + 300, staging_buffers=4)
    begin(connect(server.address, SMALL).client, SMALL)
    room = visit(server.address)["room"]
    assert room.level is Level.PROBLEM
    assert "--memory-limit" in room.text
    server.in_loop(lambda: server.server.run.finish("enough"))
    finished = visit(server.address)["server"]
    assert finished.level is Level.WARNING
    assert "sent home" in finished.text


def test_another_version_of_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_server.service.status.__version__", "9.9.9")
    version = visit(serve().address)["version"]
    assert version.level is Level.WARNING
    assert "9.9.9" in version.text


def test_the_socket_of_shared_memory(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    missing = check_shared_memory(path)
    assert missing.level is Level.PROBLEM
    assert "must be a volume" in missing.text
    server = serve(shared_memory_socket=path)
    assert check_shared_memory(path).level is Level.OK
    server.stop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(path))
    assert "does not answer" in check_shared_memory(path).text
    assert check_shared_memory(None).level is Level.OK


NONE: Mapping[str, Any] = {"built_for": "13.0", "devices": [], "why": "", "mps": False}
NO_CARD = Hardware(cards=0, driver="", devices=0, hidden=False)


@pytest.mark.parametrize(
    ("probe", "hardware", "device", "level", "said"),
    [
        (NONE, NO_CARD, "auto", Level.OK, "none in this machine"),
        ({**NONE, "built_for": None}, NO_CARD, "auto", Level.OK, "without CUDA"),
        (NONE, NO_CARD, "cuda", Level.PROBLEM, "--device auto or cpu"),
        (NONE, Hardware(1, "", 0, False), "auto", Level.PROBLEM, "driver is not loaded"),
        ({**NONE, "built_for": None}, Hardware(1, "580.1", 1, False), "auto", Level.PROBLEM, "pytorch.org"),
        (NONE, Hardware(1, "580.1", 0, False), "auto", Level.PROBLEM, "compose.gpu.yml"),
        (
            {**NONE, "why": "too old"},
            Hardware(1, "470.2", 1, False),
            "auto",
            Level.PROBLEM,
            "too old): is driver 470.2",
        ),
        (NONE, Hardware(1, "580.1", 1, True), "auto", Level.WARNING, "CUDA_VISIBLE_DEVICES"),
        (NONE, Hardware(1, "", 0, False), "cpu", Level.OK, "none needed"),
        ({**NONE, "devices": ["H100"]}, Hardware(1, "580.1", 1, False), "auto", Level.OK, "H100"),
        (NONE, NO_CARD, "mps", Level.PROBLEM, "no such device"),
        ("libcudnn.so.9: no such file", NO_CARD, "auto", Level.PROBLEM, "libcudnn"),
        (None, NO_CARD, "cuda", Level.WARNING, "machine is busy (load"),
    ],
)
def test_why_torch_sees_no_gpu(
    probe: Mapping[str, Any] | str | None, hardware: Hardware, device: str, level: Level, said: str
) -> None:
    found = gpu.check_device(probe, hardware, device)
    assert found.level is level
    assert said in found.text


def test_a_torch_that_is_slow_to_import_is_not_a_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import threading\nthreading.Event().wait()\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = gpu.check_device(gpu.probe_torch(seconds=0.5), NO_CARD, "auto")
    assert found.level is Level.WARNING
    assert "reinstall" not in found.text


def test_hardware_is_seen_as_linux_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, vendor, kind in (
        ("gpu", "0x10de", "0x030200"),
        ("sound", "0x10de", "0x040300"),
        ("net", "0x8086", "0x02"),
    ):
        card = tmp_path / "sys/bus/pci/devices" / name
        card.mkdir(parents=True)
        (card / "vendor").write_text(f"{vendor}\n")
        (card / "class").write_text(f"{kind}\n")
    assert gpu.inspect_hardware(tmp_path) == Hardware(1, "", 0, False)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n"
    )
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    assert gpu.inspect_hardware(tmp_path) == Hardware(1, "580.95.05", 2, False)


def of(versions: Mapping[str, str]) -> Any:
    return lambda name: versions.get(name)


@pytest.mark.parametrize(
    ("versions", "level", "said"),
    [
        ({}, Level.WARNING, 'pip install ".[worker]"'),
        ({"torch": "2.11.0"}, Level.WARNING, "without torchvision"),
        ({"torch": "2.11.0+cpu", "torchvision": "0.26.0+cpu"}, Level.OK, "match"),
        ({"torch": "2.11", "torchvision": "0.26.0"}, Level.OK, "match"),
        ({"torch": "2.12.1", "torchvision": "0.26.0"}, Level.PROBLEM, "it wants torch==2.11.0"),
        ({"torch": "2.11.0+cpu", "torchvision": "0.26.0+cu130"}, Level.PROBLEM, "different devices"),
    ],
)
def test_torch_and_torchvision_are_held_to_each_other(versions: Mapping[str, str], level: Level, said: str) -> None:
    requirements = ["numpy", "torch==2.11.0", 'gdown>=4.7.3; extra == "gdown"']
    found = packages.check_torch_pair(of(versions), lambda _: requirements)
    assert found.level is level
    assert said in found.text


def test_packages_that_are_too_old_too_new_or_missing() -> None:
    wanted = ["numpy>=2.0", "protobuf<8,>=6.31.1", 'torch>=2.11; extra == "worker"', "rich>=13.9"]
    good = {"numpy": "2.4.6", "protobuf": "7.36.0rc1", "rich": "15.0"}
    (found,) = packages.check_packages(wanted, of(good))
    assert found.level is Level.OK
    bad = {"numpy": "1.26.4", "protobuf": "8.0.0", "torch": "2.9.1"}
    texts = [one.text for one in packages.check_packages(wanted, of(bad))]
    assert [text.split()[0] for text in texts] == ["numpy", "protobuf", "torch", "rich"]
    assert 'pip install --upgrade "protobuf<8,>=6.31.1"' in texts[1]
    assert "is not installed" in texts[3]


def test_memory_is_held_to_the_runs_model() -> None:
    gib = 1 << 30
    assert machine.check_memory(8 * gib, None).level is Level.OK
    assert machine.check_memory(gib // 4, None).level is Level.WARNING
    assert machine.check_memory(8 * gib, 61_000_000).level is Level.OK
    short = machine.check_memory(gib, 61_000_000)
    assert short.level is Level.PROBLEM
    assert "1,442 MiB" in short.text


def test_a_clock_that_cannot_be_right() -> None:
    assert (
        "timedatectl" in machine.check_clock(datetime(1970, 1, 1, tzinfo=UTC), over_tls=False, same_machine=True).text
    )
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert "cannot be known" in machine.check_clock(now, over_tls=False, same_machine=False).text
    assert "certificate is good" in machine.check_clock(now, over_tls=True, same_machine=False).text


def test_a_misspelt_variable() -> None:
    found = machine.check_variables({"GEMPS_ETTA": "0.1", "HOME": "/"})
    assert found.level is Level.WARNING
    assert "did you mean GEMPS_ETA?" in found.text
    assert machine.check_variables({"GEMPS_ETA": "1"}).text == "GEMPS_ETA"


@pytest.fixture
def no_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which torch is installed and broken, as it is after half of an update."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_the_command_tells_all_of_it_and_exits_with_1(no_torch: dict[str, str], serve: Serve) -> None:
    env = {**no_torch, "NUMBA_THREADING_LAYER": "workqueue", "GEMPS_ETTA": "0.1"}
    done = gemps("doctor", "--json", "--server", serve().address, env=env)
    assert done.returncode == FAILED
    told = json.loads(done.stdout)
    assert told["ok"] is False
    levels = {check["check"]: check["level"] for check in told["checks"]}
    assert {name for name, level in levels.items() if level == "problem"} == {"gpu", "threads"}
    assert {name for name, level in levels.items() if level == "warning"} == {"variables"}
    assert told["checks"][0]["check"] == "versions"
    assert levels.keys() >= {"python", "packages", "torch", "server", "version", "room", "memory", "clock"}
    texts = {check["check"]: check["text"] for check in told["checks"]}
    assert re.match(r"gemps [\d.]+, python [\d.]+, .*grpcio \d", texts["versions"])
    assert "libtorch_cpu.so" in texts["gpu"]
    assert "NUMBA_THREADING_LAYER=omp" in texts["threads"]


def test_settings_that_are_wrong_are_a_line_of_it(no_torch: dict[str, str]) -> None:
    code, said = in_terminal("doctor", env={**no_torch, "GEMPS_CLIENT_TLS_CERT": "x"})
    assert code == FAILED
    assert "settings: GEMPS_CLIENT_TLS_CERT and GEMPS_CLIENT_TLS_KEY belong together" in said
    assert all(line.split()[0].endswith(("ok", "warning", "problem")) for line in said.splitlines())

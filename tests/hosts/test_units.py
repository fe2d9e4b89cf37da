"""The systemd units are valid, and what they and their example settings name exists. test_systemd.py runs them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gem_server.settings import ServerSettings
from gem_worker.client import ClientSettings
from gem_worker.exit_status import FINAL, FINISHED_BEFORE
from gem_worker.settings import WorkerSettings

FOLDER = Path(__file__).resolve().parents[2] / "deploy/systemd"
UNITS = ["gemps-server.service", "gemps-worker@.service"]
INSTALLED = "/opt/gemps/bin/"

SERVER = {f"GEMPS_{name.upper()}" for name in ServerSettings.model_fields}
WORKER = {f"GEMPS_{name.upper()}" for name in WorkerSettings.model_fields}
WORKER |= {f"GEMPS_CLIENT_{name.upper()}" for name in ClientSettings.model_fields}


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def directives(unit: str) -> dict[str, list[str]]:
    """The unit's keys, with their values in order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text(unit), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def complaints(unit: Path) -> list[str]:
    """What systemd has against the unit itself, not against others of this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here: install the package systemd")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if unit.stem in line]


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong_with_the_unit(unit: str, tmp_path: Path) -> None:
    # It also checks that the command exists, so the copy names the one that is installed here.
    copy = tmp_path / unit
    copy.write_text(text(unit).replace(INSTALLED, f"{Path(sys.executable).parent}/"), encoding="utf-8")
    assert complaints(copy) == []


def test_systemd_would_have_found_a_wrong_key(tmp_path: Path) -> None:
    copy = tmp_path / "gemps-wrong.service"
    copy.write_text("[Service]\nExecStart=/bin/true\nRestrat=always\n", encoding="utf-8")
    assert len(complaints(copy)) == 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gemps-server.service", SERVER),
        ("server.env", SERVER),
        ("gemps-worker@.service", WORKER),
        ("worker.env", WORKER),
    ],
)
def test_every_setting_that_is_named_exists(name: str, settings: set[str]) -> None:
    named = set(re.findall(r"\bGEMPS_[A-Z_]+\b", text(name).replace("GEMPS_<SETTING>", "")))
    assert named
    assert named <= settings


@pytest.mark.parametrize("unit", UNITS)
def test_kernels_may_be_compiled(unit: str) -> None:
    assert "MemoryDenyWriteExecute" not in directives(unit)


def test_a_worker_sees_the_gpus() -> None:
    hidden_by = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"}
    assert not hidden_by & directives("gemps-worker@.service").keys()


@pytest.mark.parametrize(
    ("unit", "statuses"), [("gemps-server.service", "2"), ("gemps-worker@.service", f"{FINAL} {FINISHED_BEFORE}")]
)
def test_a_crash_is_followed_by_a_restart_and_what_is_final_is_not(unit: str, statuses: str) -> None:
    found = directives(unit)
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == [statuses]


def test_what_the_server_writes_is_where_it_may_write() -> None:
    found = directives("gemps-server.service")
    assert found["ProtectSystem"] == ["strict"]
    written = [one.partition("=")[2] for one in found["Environment"]]
    written += re.findall(r"--ready-file (\S+)", found["ExecStart"][0])
    may_write = [
        f"{root}/{found[key][0]}"
        for root, key in (("%S", "StateDirectory"), ("%C", "CacheDirectory"), ("%t", "RuntimeDirectory"))
    ]
    assert len(written) == 3
    assert all(any(f"{path}/".startswith(f"{place}/") for place in may_write) for path in written)

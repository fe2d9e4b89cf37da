"""What the wheel holds."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# And the folder of the checkout that each is in.
PACKAGES = {
    "gem_core": "",
    "gem_trace": "",
    "gem_server": "server",
    "gem_worker": "worker",
    "gem_simulator": "simulator",
    "gem_reproduction": "reproduction",
    "gem_conformance": "conformance",
    "gem_cli": "cli",
    "gem_launch": "launch",
    "gemps": "proto",
}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("gemps-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_the_protos(wheel_names: set[str]) -> None:
    protos = {path.relative_to(ROOT / "proto").as_posix() for path in (ROOT / "proto/gemps").rglob("*.proto")}
    assert protos
    assert protos <= wheel_names


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_says_that_a_package_is_typed(wheel_names: set[str], package: str) -> None:
    assert f"{package}/py.typed" in wheel_names


def test_wheel_holds_only_the_packages_and_its_metadata(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_wheel_holds_every_module_of_the_checkout(wheel_names: set[str]) -> None:
    for package, parent in PACKAGES.items():
        base = ROOT / parent
        modules = {path.relative_to(base).as_posix() for path in (base / package).rglob("*.py")}
        assert modules <= wheel_names


def test_wheel_holds_the_templates_of_job_scripts(wheel_names: set[str]) -> None:
    templates = {f"gem_launch/engines/{path.name}" for path in (ROOT / "launch/gem_launch/engines").glob("*.sh")}
    assert "gem_launch/engines/slurm_job.sh" in templates
    assert templates <= wheel_names


def test_wheel_holds_the_dashboard_and_what_it_has_of_others_with_their_licences(wheel_names: set[str]) -> None:
    static = ROOT / "server/gem_server/web/static"
    files = {path.relative_to(ROOT / "server").as_posix() for path in static.rglob("*") if path.is_file()}
    assert {path.rpartition("/")[2] for path in files} >= {
        "index.html",
        "uPlot.esm.js",
        "uPlot.LICENSE",
        "inter.LICENSE",
    }
    assert files <= wheel_names
    assert not any("node_modules" in name for name in wheel_names)
